"""A type of model of each kind; tests/clients/test_every_model.py walks all that transformers has."""

import pytest
from encoders.promises import outcomes

WORK = [
    "albert",
    "bert",
    "distilbert",
    "electra",
    "esm",
    "modernbert",
    "mpnet",
    "roberta",
    "siglip_vision_model",
    "vit",
]
WORK += ["dinov3_vit", "layoutlm", "wav2vec2"]
ENCODERS_WORK = ["bart", "m2m_100", "whisper"]
NO_RAW_ERROR = ["videomae", "audio-spectrogram-transformer", "pixtral", "siglip_text_model", "aimv2_text_model"]
REFUSED = ["clip", "deberta", "gpt2", "glpn", "llama", "t5", "wavlm", "xlnet"]


@pytest.mark.parametrize("model_type", WORK)
def test_works(model_type):
    assert outcomes(model_type) == {"": "works"}


@pytest.mark.parametrize("model_type", ENCODERS_WORK)
def test_the_encoder_alone_works(model_type):
    whole = outcomes(model_type)
    assert whole.pop("get_encoder()") == "works" and "linearize(model.get_encoder())" in whole[""]


@pytest.mark.parametrize("model_type", REFUSED)
def test_is_refused_in_one_line(model_type):
    assert "works" not in outcomes(model_type).values()


@pytest.mark.parametrize("model_type", NO_RAW_ERROR)
def test_works_or_is_refused(model_type):
    assert outcomes(model_type)
