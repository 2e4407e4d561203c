"""The chat on a real server of the API: `transformers serve` with a tiny random model."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsv4chat.core.settings import Settings
from tests.ui.conftest import answer, sees, until
from tests.ui.test_remote import remote_app

START_S = 120.0
MAKE_MODEL = """
import sys
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
vocab = {text: n for n, text in enumerate(["</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
bytes_ = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
bytes_.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token="</s>", pad_token="</s>")
fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\\n{% endfor %}"
fast.save_pretrained(sys.argv[1])
LlamaForCausalLM(LlamaConfig(
    vocab_size=len(vocab), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512,
)).save_pretrained(sys.argv[1])
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory):
    """A running server on a port of its own choice, which its log names."""
    folder = tmp_path_factory.mktemp("served")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        [sys.executable, "-c", MAKE_MODEL, str(folder / "m")], check=True, env=environment
    )
    log = folder / "log"
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(folder / "m")]
    with log.open("wb") as out:
        child = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", "0", "--log-level", "info"],
            stdout=out, stderr=out, env=environment, cwd=folder,
        )  # fmt: skip
    end = time.monotonic() + START_S
    try:
        while not (found := re.search(r"running on (http://127.0.0.1:\d+)", log.read_text())):
            assert child.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield f"{found[1]}/v1"
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
async def test_a_chat_of_two_answers_on_a_real_server(url):
    app = remote_app(url, Settings(max_tokens=8, seed=1))
    async with app.run_test(size=(130, 40), notifications=True) as pilot:
        await until(pilot, lambda: app.session.phase == "ready", 60.0)
        for question in ("hello", "and then?"):
            await answer(pilot, question)
            turn = app.session.conversation.path[-1]
            assert turn.finish == "length", turn.note
            assert turn.text and turn.finished.tokens == 8
        assert turn.finished.prompt_tokens > 20
        await sees(pilot, "stop: length", "sends no log probabilities")
