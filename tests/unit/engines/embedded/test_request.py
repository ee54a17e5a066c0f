"""What is refused at the door says what was found and what is allowed."""

import pytest

from parity.engines.embedded.request import check_prompt, check_sampling
from parity.errors import EngineError
from parity.types import Sampling


def test_a_prompt_that_just_fits_is_let_in() -> None:
    check_prompt((0, 9), max_new_tokens=3, vocabulary_size=10, max_length=5)
    check_sampling(Sampling(max_new_tokens=1, stop=("x",)), can_decode_text=True)
    check_sampling(Sampling(max_new_tokens=1, temperature=0.0, top_p=1e-6), can_decode_text=False)


@pytest.mark.parametrize(
    ("tokens", "match"),
    [((), "empty"), ((0, 10), "from 0 to 10"), ((-1,), "from -1"), ((1, 2, 3), "together 6")],
)
def test_prompts_are_refused(tokens: tuple[int, ...], match: str) -> None:
    with pytest.raises(EngineError, match=match):
        check_prompt(tokens, max_new_tokens=3, vocabulary_size=10, max_length=5)


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(EngineError, match="decode"):
        check_sampling(Sampling(max_new_tokens=1, stop=("x",)), can_decode_text=False)
