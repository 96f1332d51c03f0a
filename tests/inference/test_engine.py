"""What an engine refuses before any document is read."""

import pytest

from torch_linformer.errors import InputError
from torch_linformer.inference.engines import Engine


@pytest.mark.parametrize("options", [{"workers": 2}, {"name": "ray"}], ids=str)
def test_a_compiled_model_has_one_process(options):
    with pytest.raises(InputError, match="--compile is for a single process: leave out --workers and --engine ray"):
        Engine(**options).check("cpu", compiled=True)
    Engine().check("cpu", compiled=True)
