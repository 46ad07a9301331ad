"""What the arms ask: fixed texts and fixed token ids, the same in every run."""

from __future__ import annotations

from typing import NamedTuple

from inferswarm.swarm import Model


class Question(NamedTuple):
    """One prompt with the name that its answers are kept under."""

    key: str
    text: str


CHAT_QUESTIONS = tuple(
    Question(f"q{number}", text)
    for number, text in enumerate(
        (
            "Why is the sky blue?",
            "Name three rivers in Europe.",
            "Write one sentence about a lighthouse keeper.",
            "What is the capital of France, and what is it known for?",
            "Explain in two sentences how a bicycle stays upright.",
            "List four things to take on a long walk.",
            "What does a compiler do?",
            "Give me a recipe for pancakes.",
            "Who was Ada Lovelace?",
            "How many minutes are there in a day?",
        )
    )
)
"""Asked of a model that was taught to chat."""
PLAIN_QUESTIONS = tuple(
    Question(f"p{number}", text)
    for number, text in enumerate(
        (
            "The capital of France is",
            "Once upon a time there was a lighthouse keeper who",
            "Water boils at a temperature of",
            "The three largest rivers in Europe are",
            "To make bread you need flour, water and",
            "In the year 1969 the first people",
            "A prime number is a number that",
            "The opposite of hot is",
        )
    )
)
"""Continued by a model that knows no chat."""
ID_STRIDE, ID_OFFSET = 7919, 101
"""A prime and a beginning: multiples of it spread over every vocabulary of other size."""


def ids_of(model: Model, question: Question) -> tuple[int, ...]:
    """Return the ids that a question asks with: through the chat template where the model has one."""
    if not model.text.templates:
        return model.text.codec.encode(question.text)
    return model.chat_ids([{"role": "user", "content": question.text}])


def questions_for(model: Model, num: int) -> tuple[Question, ...]:
    """Return the first `num` questions that suit a model."""
    return (CHAT_QUESTIONS if model.text.templates else PLAIN_QUESTIONS)[:num]


def spread_ids(model: Model, num_tokens: int) -> tuple[int, ...]:
    """Return so many ids, spread over the vocabulary: a prompt of exactly that length, the same in every run."""
    size = model.description.vocabulary_size
    return tuple((index * ID_STRIDE + ID_OFFSET) % size for index in range(num_tokens))
