import pytest

from torch_linformer.cli.app import run


def test_a_model_and_where_it_went(model_copy, capsys):
    with pytest.raises(SystemExit) as exit_:
        run(["export", f"{model_copy}/", "--format", "torch"])
    assert exit_.value.code == 0
    shown, progress = capsys.readouterr()
    assert shown.startswith(f"{model_copy}-torch/model.pt2: its scores differ from the model's by at most ")
    assert progress == ("tracing the model\ncomparing its scores with the model's, on texts of up to 24 tokens\n")
    assert (model_copy.parent / f"{model_copy.name}-torch" / "tokenizer.json").is_file()
