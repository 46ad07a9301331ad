"""A model's text from a GGUF header and from a directory: templates, ends of an answer, roles, and refusals."""

import base64
import json
import threading
import zlib
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from inferswarm.errors import ArtifactError, ModelError, SpecError, UnsupportedModel
from inferswarm.strategies.text.chat import ChatTemplate, encode_chat
from inferswarm.strategies.text.source import ModelText, open_text
from tests.models import small_vocabulary

USER = [{"role": "user", "content": "hi"}]


def gguf(**changes):
    tokens, types, merges = small_vocabulary(400)
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tuple(tokens),
        "tokenizer.ggml.token_type": tuple(types),
        "tokenizer.ggml.merges": tuple(merges),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return {key: value for key, value in (keys | changes).items() if value is not None}


def byte_level(**parts):
    """Return a byte-level tokenizer whose vocabulary is the 256 bytes and three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, [], **parts))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "</s>", "<|im_end|>")])
    return tokenizer


S, END, TURN = 256, 257, 258


@pytest.fixture
def write(tmp_path):
    """Write a model directory from a tokenizer and settings by file name, and return its path."""

    def make(tokenizer=None, **files):
        (tokenizer or byte_level()).save(str(tmp_path / "tokenizer.json"))
        names = {"generation": "generation_config.json", "config": "config.json", "settings": "tokenizer_config.json"}
        for name, value in files.items():
            text = value if isinstance(value, str) else json.dumps(value)
            (tmp_path / names.get(name, name.replace("__", "/"))).write_text(text)
        return tmp_path

    return make


def test_a_gguf_header_brings_its_templates_by_name():
    text = ModelText.from_gguf(
        gguf(
            **{
                "tokenizer.chat_template": "main {{ eos_token }}",
                "tokenizer.chat_templates": ("tool_use",),
                "tokenizer.chat_template.tool_use": "tools",
            }
        ),
        "test",
    )
    assert text.chat.render(USER) == "main <|im_end|>"
    assert text.chat_named("tool_use").render(USER) == "tools"
    with pytest.raises(SpecError, match="default, tool_use"):
        text.chat_named("rag")


def test_a_model_without_a_template_has_no_chat():
    with pytest.raises(SpecError, match="completes raw text only"):
        _ = ModelText.from_gguf(gguf(), "test").chat


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer.chat_template": 5},
        {"tokenizer.chat_templates": ("missing",)},
        {"tokenizer.chat_templates": "tool_use"},
    ],
)
def test_templates_that_contradict_the_header_are_errors(changes):
    with pytest.raises(ModelError, match="chat_template"):
        ModelText.from_gguf(gguf(**changes), "test")


def ends(names, kind=3, **roles):
    tokens, types, merges = small_vocabulary(700)
    tokens[-len(names) :], types[-len(names) :] = names, [kind] * len(names)
    keys = {f"tokenizer.ggml.{role}_token_id": tokens.index(name) for role, name in roles.items()}
    keys |= {"tokenizer.ggml.tokens": tuple(tokens), "tokenizer.ggml.token_type": tuple(types)}
    metadata = gguf(**keys, **{"tokenizer.ggml.merges": tuple(merges)})
    text = ModelText.from_gguf(metadata, "test")
    return {text.codec.token(index) for index in text.stop_ids} - {"<|endoftext|>", "<|im_end|>"}


def test_an_answer_ends_at_every_token_that_ends_a_turn():
    assert ends(["<end_of_turn>", "<|eot_id|>", "<|other|>"]) == {"<end_of_turn>", "<|eot_id|>"}
    assert ends(["<a>", "<b>", "<c>"], eot="<a>", eom="<b>") == {"<a>", "<b>"}
    assert ends(["<end_of_turn>"], kind=4) == {"<end_of_turn>"}
    assert ends(["<end_of_turn>"], kind=5) == set()


def turns(text):
    """Return the ids of a chat whose only message holds the name of the token that ends it."""
    template = ChatTemplate("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", "test")
    return encode_chat(text.codec, template, [{"role": "user", "content": "a<|im_end|>b"}]).ids


def test_a_user_defined_token_that_ends_a_turn_is_no_text_and_no_message_makes_one(write):
    tokens, types, _ = small_vocabulary(400)
    types[tokens.index("<|im_end|>")] = 4
    from_gguf = ModelText.from_gguf(gguf(**{"tokenizer.ggml.token_type": tuple(types)}), "test")
    tokenizer = Tokenizer(byte_level().model)
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tokenizer.add_tokens([AddedToken("<|im_end|>", normalized=False)])
    for text in (from_gguf, open_text(write(tokenizer))):
        (end,) = text.codec.encode("<|im_end|>", parse_special=True)
        assert end in text.stop_ids
        assert text.codec.decode([*text.codec.encode("hi"), end]) == "hi"
        assert turns(text).count(end) == 1
        assert text.codec.decode(turns(text)) == "a<|im_end|>b"


def test_a_user_defined_token_that_a_settings_file_names_as_an_end_is_no_text(write):
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<over>", normalized=False), AddedToken("<think>", normalized=False)])
    codec = open_text(write(tokenizer, generation={"eos_token_id": [END, 259]})).codec
    assert (codec.is_special(259), codec.is_special(260)) == (True, False)
    assert 259 not in codec.encode("a<over>b")
    assert codec.encode("a<over>b", parse_special=True)[1] == 259
    assert 260 in codec.encode("a<think>b")


@pytest.mark.parametrize(("scheme", "space"), [("first", ""), ("always", " "), ("never", "")])
def test_a_message_with_a_name_in_it_gets_no_other_space_than_one_without(write, scheme, space):
    pieces = [("<unk>", 0.0), *((character, -2.0) for character in "▁abSend|im_<>")]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("▁a", -1.0)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme=scheme)])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    codec = open_text(write(tokenizer)).codec
    template = ChatTemplate("<|im_end|>{{ messages[0].content }}<|im_end|>", "test")
    for content in ("ab", "ab<|im_end|>"):
        ids = encode_chat(codec, template, [{"role": "user", "content": content}]).ids
        shown = codec.decode(ids, skip_special=False)
        assert shown == f"<|im_end|>{space}{content}<|im_end|>"
    assert codec.decode(codec.encode("ab")) == "ab"


def test_a_message_of_an_answer_does_not_end_it():
    assert ends(["<|end|>"]) == {"<|end|>"}
    assert ends(["<|end|>", "<|return|>", "<|call|>"]) == {"<|return|>", "<|call|>"}


def test_the_ends_of_a_directory_are_those_of_all_its_files(write):
    path = write(generation={"eos_token_id": [END, 65]}, config={"eos_token_id": 66}, settings={"eos_token": "</s>"})
    assert ModelText.from_directory(path).stop_ids == {END, 65, 66, TURN}
    assert open_text(path).stop_ids == {END, 65, 66, TURN}


def test_an_inner_configuration_names_ends_too(write):
    assert 67 in open_text(write(config={"text_config": {"eos_token_id": [67]}})).stop_ids


@pytest.mark.parametrize("value", [True, "2", -1, 259, [1, None]])
def test_an_end_that_is_no_token_is_an_error(write, value):
    with pytest.raises(ModelError, match="eos_token_id"):
        open_text(write(generation={"eos_token_id": value}))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"settings": {"chat_template": "one"}}, "one"),
        ({"settings": {"chat_template": [{"name": "default", "template": "two"}]}}, "two"),
        ({"settings": {"chat_template": "one"}, "chat_template.jinja": "three"}, "three"),
        ({"chat_template.json": {"chat_template": "four"}}, "four"),
        ({"chat_template.jinja": "{{ bos_token }}", "settings": {"bos_token": {"content": "<s>"}}}, "<s>"),
        ({"chat_template.jinja": "{{ bos_token }}", "special_tokens_map.json": {"bos_token": "<s>"}}, "<s>"),
        ({"chat_template.jinja": "{{ bos_token }}", "config": {"bos_token_id": S}}, "<s>"),
    ],
)
def test_a_directorys_template_is_found_wherever_it_is(write, files, expected):
    assert open_text(write(**files)).chat.render(USER) == expected


def test_a_directory_may_have_several_templates(write):
    path = write(settings={"chat_template": "one"})
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "rag.jinja").write_text("other")
    text = open_text(path)
    assert (text.chat.render(USER), text.chat_named("rag").render(USER)) == ("one", "other")


def begins():
    tokenizer = byte_level()
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", S)]),
        ]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "settings", "expected"),
    [
        (byte_level, {}, False),
        (byte_level, {"bos_token": "<s>"}, False),
        (byte_level, {"bos_token": "<s>", "add_bos_token": True}, True),
        (byte_level, {"add_bos_token": True}, False),
        (begins, {}, True),
        (begins, {"bos_token": "<s>"}, True),
        (begins, {"bos_token": "<s>", "add_bos_token": False}, False),
        (begins, {"bos_token": "<s>", "add_bos_token": None}, False),
    ],
)
def test_the_beginning_token_goes_first_as_the_files_say(write, tokenizer, settings, expected):
    codec = open_text(write(tokenizer(), settings=settings)).codec
    assert codec.encode("a") == ((S,) if expected else ()) + codec.encode("a", add_bos=False)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda t: setattr(t, "decoder", None), "decoder"),
        (lambda t: setattr(t, "decoder", decoders.WordPiece()), "decoder"),
        (lambda t: setattr(t, "decoder", decoders.Sequence([decoders.Replace("_", " ")])), "decoder"),
        (lambda t: setattr(t, "model", models.WordPiece({"a": 0}, unk_token="a")), "model type"),
        (lambda t: setattr(t, "model", models.BPE({"a": 0}, [], dropout=0.5)), "dropout"),
        (lambda t: setattr(t, "model", models.BPE({"a": 0}, [], end_of_word_suffix="</w>")), "end_of_word_suffix"),
        (
            lambda t: setattr(
                t,
                "post_processor",
                processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)]),
            ),
            "post_processor",
        ),
        (
            lambda t: setattr(t, "post_processor", processors.BertProcessing(("</s>", END), ("<s>", S))),
            "post_processor",
        ),
        (lambda t: setattr(t, "post_processor", processors.TemplateProcessing(single="$A $A")), "post_processor"),
        (
            lambda t: setattr(
                t,
                "post_processor",
                processors.TemplateProcessing(
                    single="<s> $A", special_tokens=[{"id": "<s>", "ids": [S, END], "tokens": ["<s>", "</s>"]}]
                ),
            ),
            "post_processor",
        ),
    ],
)
def test_a_tokenizer_file_that_needs_more_is_refused_by_name(write, change, field):
    tokenizer = byte_level()
    change(tokenizer)
    with pytest.raises(UnsupportedModel) as caught:
        open_text(write(tokenizer))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tokenizer.json": "{}"}, "not a tokenizer"),
        ({"tokenizer.json": "GGUF"}, "not a tokenizer"),
        ({"settings": "[]"}, "needed an object"),
        ({"settings": '{"a": 1, "a": 2}'}, "twice"),
        ({"generation": '{"a": NaN}'}, "NaN"),
        ({"config": "{"}, "not JSON"),
        ({"settings": {"bos_token": "<absent>"}}, "'<absent>' is not a token"),
        ({"settings": {"bos_token": 5}}, "bos_token is 5"),
        ({"settings": {"add_bos_token": "yes"}}, "add_bos_token"),
        ({"settings": {"chat_template": 5}}, "chat_template"),
        ({"settings": {"chat_template": [{"name": "default"}]}}, "not a named template"),
    ],
)
def test_contradictory_files_are_errors(write, files, words):
    with pytest.raises(ModelError, match=words):
        open_text(write(**files))


def test_an_added_end_token_is_refused(write):
    with pytest.raises(UnsupportedModel, match="add_eos_token"):
        open_text(write(settings={"add_eos_token": True}))


def test_a_directory_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(ModelError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        open_text(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match=r"tekken\.json"):
        open_text(tmp_path)


def test_a_path_that_is_not_there_is_no_directory(tmp_path):
    with pytest.raises(SpecError, match="model directory"):
        ModelText.from_directory(tmp_path / "absent")


def test_a_byte_that_the_vocabulary_lacks_is_refused_not_dropped(write):
    alphabet = sorted({*pre_tokenizers.ByteLevel.alphabet()} - {"z"})
    tokenizer = byte_level()
    tokenizer.model = models.BPE({token: index for index, token in enumerate(alphabet)}, [])
    codec = open_text(write(tokenizer)).codec
    assert codec.decode(codec.encode("any text")) == "any text"
    with pytest.raises(SpecError) as caught:
        codec.encode("lazy")
    assert (caught.value.field, caught.value.found) == ("text", "z")


def unknown_words():
    tokenizer = Tokenizer(models.BPE({"<unk>": 0, "▁": 1, "a": 2, "▁a": 3}, [("▁", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken("<unk>", special=True)])
    return tokenizer


def test_text_that_would_become_the_unknown_token_is_refused(write):
    codec = open_text(write(unknown_words())).codec
    assert codec.decode(codec.encode("a a")) == "a a"
    assert codec.encode("a<unk>", parse_special=True) == (3, 0)
    with pytest.raises(SpecError) as caught:
        codec.encode("a b")
    assert caught.value.found == "b"


def test_a_model_that_would_drop_what_it_does_not_know_is_refused(write):
    tokenizer = unknown_words()
    tokenizer.model = models.BPE({"▁": 0, "a": 1}, [])
    with pytest.raises(UnsupportedModel, match="byte_fallback"):
        open_text(write(tokenizer))


def test_an_id_without_a_token_stands_for_nothing(write):
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 3}, []))
    tokenizer.decoder = decoders.ByteLevel()
    codec = open_text(write(tokenizer)).codec
    assert (codec.token_bytes(0), codec.token_bytes(2), codec.token_bytes(3)) == (b"a", b"", b"b")


def test_special_names_are_read_by_one_thread_and_not_by_another(write):
    """The library's switch is one for the whole tokenizer; calls with and without it must not mix."""
    codec = open_text(write()).codec
    text = "a<s>b" * 200
    expected = {mode: codec.encode(text, parse_special=mode) for mode in (True, False)}
    wrong = []

    def check(mode):
        wrong.extend(1 for _ in range(100) if codec.encode(text, parse_special=mode) != expected[mode])

    threads = [threading.Thread(target=check, args=(mode,)) for mode in (True, False, True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_sentencepiece_directory_takes_its_added_tokens_from_the_settings(write, tmp_path):
    golden = json.loads((Path(__file__).resolve().parents[2] / "golden" / "sentencepiece.json").read_text())
    model = golden["models"]["bpe"]
    (tmp_path / "tokenizer.model").write_bytes(zlib.decompress(base64.b64decode(model["model"])))
    plain = open_text(tmp_path).codec
    size = plain.size
    settings = {
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {
            str(size): {"content": "<|im_end|>", "special": True},
            str(size + 1): {"content": "<think>", "special": False},
        },
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    text = open_text(tmp_path)
    assert text.codec.size == size + 2
    assert text.stop_ids == {size}
    assert text.codec.encode("a<think>", add_bos=False) == (*plain.encode("a", add_bos=False), size + 1)
    assert text.codec.encode("a")[0] == plain.encode("a")[0] == plain.bos_id
    for wrong in ({"x": {"content": "<far>"}}, {str(size): "text"}, {str(size): {"special": True}}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": wrong}))
        with pytest.raises(ModelError, match="added token"):
            open_text(tmp_path)
    settings["added_tokens_decoder"] = {str(size + 5): {"content": "<far>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "</s>"}))
    with pytest.raises(ModelError, match="<far>"):
        open_text(tmp_path)


def test_the_text_of_a_real_file_is_ready_from_its_path(smollm2_path):
    text = open_text(smollm2_path)
    assert text.chat.render(USER).endswith("<|im_start|>assistant\n")
    assert {text.codec.token(index) for index in text.stop_ids} == {"<|im_end|>", "<|endoftext|>"}
    assert text.special_tokens["bos_token"] == "<|im_start|>"


def test_a_settings_file_that_is_a_link_to_nothing_is_not_taken_for_an_absent_one(write):
    path = write()
    (path / "generation_config.json").symlink_to("../blobs/gone")
    with pytest.raises(ArtifactError, match=r"is a link to \.\./blobs/gone, where nothing is"):
        open_text(path)
