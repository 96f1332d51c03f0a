"""Stands in for transformers' `tests/exporters/test_export.py`: a model's graph gives what the model gives."""

import torch
from torch.testing import assert_close


class ExportTesterMixin:
    """Needs of the class beside it: ``all_model_classes``, ``model_tester`` and ``_prepare_for_class``."""

    def test_torch_export(self):
        for model_class in self.all_model_classes:
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            inputs = self._prepare_for_class(inputs, model_class)
            torch.manual_seed(0)
            model = model_class(config).eval()
            options = {"return_dict": False, "use_cache": False} if model.can_generate() else {"return_dict": False}
            with torch.no_grad():
                program = torch.export.export(model, (), {**inputs, **options}, strict=False)
                assert_close(program.module()(**inputs, **options)[0], model(**inputs, **options)[0])
