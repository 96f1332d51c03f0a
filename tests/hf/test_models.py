"""Transformers' tests of models and configurations, run on every class of ours."""

from contextlib import nullcontext
from unittest import TestCase

import pytest
from transformers_tests.generation.test_utils import GenerationTesterMixin
from transformers_tests.test_configuration_common import ConfigTester
from transformers_tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask

from torch_linformer import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
    LinformerSeq2SeqConfig,
)


class LinformerTester:
    """A small model and a batch, in the shape that transformers' tests ask for them."""

    batch_size, seq_length, vocab_size, num_choices = 5, 7, 99, 3
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4
    k = key_length = decoder_key_length = 6  # an attention weight is that of a slot
    is_training = True

    def __init__(self, parent, **fields):
        self.parent, self.fields = parent, fields

    def get_config(self):
        return LinformerConfig(**self.sizes(), **self.fields)

    def sizes(self):
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": 37,
            "max_position_embeddings": 64,
            "k": self.k,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
        }

    def prepare_config_and_inputs_for_common(self):
        shape = (self.batch_size, self.seq_length)
        inputs = {"input_ids": ids_tensor(shape, self.vocab_size), "attention_mask": random_attention_mask(shape)}
        return self.get_config(), inputs


class FullTester(LinformerTester):
    """Of a model with ordinary attention."""

    key_length = LinformerTester.seq_length

    def __init__(self, parent):
        super().__init__(parent, attention="full")


class CausalTester(LinformerTester):
    """Of a model with a window, whose tokens have attention weights beside those of the slots."""

    window = 5
    key_length = LinformerTester.k + window

    def __init__(self, parent):
        super().__init__(parent, causal=True, window=self.window, position_embedding="rotary")


class Seq2SeqTester(LinformerTester):
    """Of an encoder and a decoder."""

    def get_config(self):
        return LinformerSeq2SeqConfig(encoder=self.sizes(), decoder=self.sizes(), pad_token_id=0, bos_token_id=1)

    def prepare_config_and_inputs_for_common(self):
        config, inputs = super().prepare_config_and_inputs_for_common()
        target = ids_tensor((self.batch_size, self.seq_length), self.vocab_size)
        return config, {**inputs, "decoder_input_ids": target}


class ModelTests(ModelTesterMixin):
    """Transformers' tests of one class."""

    inputs_from = LinformerTester
    test_can_init_all_missing_weights_before_2023 = True  # it asks the year of a file's copyright, and ours has none

    def setUp(self):
        self.model_tester = self.inputs_from(self)

    def subTest(self, *args, **kwargs):
        """None of its own: what is known to fail is known by the test."""
        return nullcontext()


class TestModel(ModelTests, TestCase):
    all_model_classes = (LinformerModel,)


class TestForMaskedLM(ModelTests, TestCase):
    all_model_classes = (LinformerForMaskedLM,)


class TestForMultipleChoice(ModelTests, TestCase):
    all_model_classes = (LinformerForMultipleChoice,)


class TestForQuestionAnswering(ModelTests, TestCase):
    all_model_classes = (LinformerForQuestionAnswering,)


class TestForSequenceClassification(ModelTests, TestCase):
    all_model_classes = (LinformerForSequenceClassification,)


class TestForTokenClassification(ModelTests, TestCase):
    all_model_classes = (LinformerForTokenClassification,)


class TestForCausalLM(ModelTests, GenerationTesterMixin, TestCase):
    all_model_classes = (LinformerForCausalLM,)
    inputs_from = CausalTester


class TestForConditionalGeneration(ModelTests, GenerationTesterMixin, TestCase):
    all_model_classes = (LinformerForConditionalGeneration,)
    inputs_from = Seq2SeqTester
    is_encoder_decoder = True


class TestFullAttention(ModelTests, TestCase):
    all_model_classes = (LinformerForMaskedLM,)
    inputs_from = FullTester


@pytest.mark.parametrize("check", [name for name in vars(ConfigTester) if name.startswith(("create_and_", "check_"))])
class TestConfig:
    """Transformers' checks of a configuration, one by one."""

    config_class, inputs_from = LinformerConfig, LinformerTester

    def test_configuration(self, check):
        parent = TestCase()
        parent.model_tester = self.inputs_from(parent)
        composite = bool(self.config_class.sub_configs)
        fields = {} if composite else {"hidden_size": 36}
        tester = ConfigTester(parent, config_class=self.config_class, has_text_modality=not composite, **fields)
        getattr(tester, check)()


class TestSeq2SeqConfig(TestConfig):
    config_class, inputs_from = LinformerSeq2SeqConfig, Seq2SeqTester
