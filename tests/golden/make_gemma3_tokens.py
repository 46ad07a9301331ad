"""Write gemma3_tokens.json: what transformers answers with Gemma-3-270M's real weights, read from its GGUF file.

    python tests/golden/make_gemma3_tokens.py

transformers dequantizes the file itself, so tokens and margins are independent of every line of this project. Takes
a minute and 3 GiB.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from inferswarm.strategies.catalog import resolve_model

TARGET = Path(__file__).with_name("gemma3_tokens.json")
TOKENS = 16
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time, in a small village by the sea, there lived",
)


def load(path: Path) -> Any:
    """Return transformers' model of the file, in fp32."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def answer(model: Any, prompt: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
    """Return the greedy tokens after `prompt` and the margin of each to the second best logit."""
    tokens: list[int] = []
    margins: list[float] = []
    with torch.inference_mode():
        for _ in range(num_tokens):
            logits = model(torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0, -1].float()
            best = logits.topk(2)
            tokens.append(int(best.indices[0]))
            margins.append(round(float(best.values[0] - best.values[1]), 6))
    return tokens, margins


def main() -> None:
    """Write the file."""
    torch.set_num_threads(2)
    path = resolve_model("gemma-3-270m")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = load(path)
    answers = []
    for text in PROMPTS:
        prompt = tokenizer(text)["input_ids"]
        tokens, margins = answer(model, prompt, TOKENS)
        answers.append({"text": text, "prompt": prompt, "tokens": tokens, "margins": margins})
    made_by = f"transformers {transformers.__version__}, torch {torch.__version__}"
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in answers)
    TARGET.write_text(f'{{\n "made_by": {json.dumps(made_by)},\n "answers": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
