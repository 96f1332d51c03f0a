"""Stands in for transformers' `tests/generation/test_utils.py`: what `generate` must do with every model that can."""

import copy

import pytest
import torch
from torch.testing import assert_close
from transformers import GenerationMixin

NEW = 4  # tokens that are generated


class GenerationTesterMixin:
    """Needs of the class beside it: ``all_model_classes`` and ``model_tester``."""

    def generating(self):
        """Each model that generates, in eval mode and in float64, with a batch that begins a text."""
        for model_class in self.all_model_classes:
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            torch.manual_seed(0)
            model = model_class(config).double().eval()
            for parameter in model.parameters():  # or every token has nearly the same score
                torch.nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else None
            model.tie_weights()
            model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
            given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            given["attention_mask"] = torch.ones_like(given["input_ids"])
            yield model, given

    def continues(self, model, given):
        """What a returned sequence begins with: the text itself, or of an encoder-decoder its start token."""
        if model.config.is_encoder_decoder:
            return torch.full((len(given["input_ids"]), 1), model.generation_config.decoder_start_token_id)
        return given["input_ids"]

    def logits(self, model, given, sequence):
        if model.config.is_encoder_decoder:
            return model(**given, decoder_input_ids=sequence, use_cache=False).logits
        return model(sequence, use_cache=False).logits

    def options(self, **changed):
        return {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, **changed}

    def test_generates_by_the_mixin(self):
        for model, _ in self.generating():
            assert isinstance(model, GenerationMixin) and model.can_generate()

    @torch.no_grad()
    def test_greedy_is_the_token_of_the_highest_score_each_time(self):
        for model, given in self.generating():
            for use_cache in (True, False):
                sequence = model.generate(**given, **self.options(use_cache=use_cache))
                expected = self.continues(model, given)
                for _ in range(NEW):
                    scores = self.logits(model, given, expected)[:, -1]
                    expected = torch.cat([expected, scores.argmax(-1, keepdim=True)], dim=-1)
                assert torch.equal(sequence, expected)

    @torch.no_grad()
    def test_scores_are_those_of_a_call_without_a_past(self):
        for model, given in self.generating():
            for use_cache in (True, False):
                options = self.options(use_cache=use_cache, return_dict_in_generate=True, output_logits=True)
                found = model.generate(**given, **options, output_hidden_states=True, output_attentions=True)
                whole = self.logits(model, given, found.sequences[:, :-1])[:, -NEW:]
                assert_close(torch.stack(found.logits, dim=1).double(), whole, rtol=0, atol=1e-5)
                assert (found.past_key_values is not None) == use_cache
                steps = found.decoder_hidden_states if model.config.is_encoder_decoder else found.hidden_states
                assert len(steps) == NEW and len(steps[0]) == self.model_tester.num_hidden_layers + 1

    @torch.no_grad()
    def test_samples_are_drawn_from_the_vocabulary(self):
        for model, given in self.generating():
            torch.manual_seed(0)
            sequence = model.generate(**given, **self.options(do_sample=True, num_return_sequences=2))
            start = self.continues(model, given)
            assert sequence.shape == (2 * len(start), start.shape[1] + NEW)
            assert sequence.min() >= 0 and sequence.max() < self.model_tester.vocab_size

    @torch.no_grad()
    def test_beams_score_no_less_than_greedy_and_need_no_past(self):
        for model, given in self.generating():
            options = self.options(num_beams=3, return_dict_in_generate=True, output_scores=True)
            found = model.generate(**given, **options)
            without = model.generate(**given, **{**options, "use_cache": False})
            assert torch.equal(found.sequences, without.sequences)
            greedy = model.generate(**given, **self.options())

            def likelihood(sequence, model=model, given=given):
                p = self.logits(model, given, sequence[:, :-1])[:, -NEW:].log_softmax(-1)
                return p.gather(-1, sequence[:, -NEW:, None]).sum((1, 2))

            assert_close(found.sequences_scores.double() * NEW, likelihood(found.sequences), rtol=0, atol=1e-4)
            assert (likelihood(found.sequences) >= likelihood(greedy) - 1e-9).float().mean() > 0.5

    @torch.no_grad()
    def test_beams_that_are_sampled(self):
        for model, given in self.generating():
            torch.manual_seed(0)
            sequence = model.generate(**given, **self.options(num_beams=2, do_sample=True, num_return_sequences=2))
            assert len(sequence) == 2 * len(given["input_ids"])

    @torch.no_grad()
    def test_padding_on_the_left_changes_nothing(self):
        for model, given in self.generating():
            ids, mask = given["input_ids"], given["attention_mask"]
            padding = torch.full_like(ids[:, :3], model.config.get_text_config(decoder=True).pad_token_id)
            padded = {
                "input_ids": torch.cat([padding, ids], dim=1),
                "attention_mask": torch.cat([torch.zeros_like(padding), mask], dim=1),
            }
            options = self.options(return_dict_in_generate=True, output_logits=True)
            found, expected = (model.generate(**each, **options) for each in (padded, given))
            assert torch.equal(found.sequences[:, -NEW:], expected.sequences[:, -NEW:])
            assert_close(torch.stack(found.logits), torch.stack(expected.logits), rtol=0, atol=1e-5)

    @torch.no_grad()
    def test_embeddings_of_a_text_stand_in_for_it(self):
        for model, given in self.generating():
            embeds = model.get_input_embeddings()(given["input_ids"])
            given_embeds = {"inputs_embeds": embeds, "attention_mask": given["attention_mask"]}
            found = model.generate(**given_embeds, **self.options())
            assert torch.equal(found[:, -NEW:], model.generate(**given, **self.options())[:, -NEW:])

    @torch.no_grad()
    def test_it_goes_on_from_its_own_past(self):
        for model, given in self.generating():
            if model.config.is_encoder_decoder:
                pytest.skip("an encoder-decoder goes on from what its decoder wrote, by decoder_input_ids")
            whole = model.generate(**given, **self.options(max_new_tokens=6, min_new_tokens=6))
            first = model.generate(**given, **self.options(return_dict_in_generate=True))
            rest = model.generate(
                first.sequences,
                attention_mask=torch.ones_like(first.sequences),
                past_key_values=copy.deepcopy(first.past_key_values),
                **self.options(max_new_tokens=2, min_new_tokens=2),
            )
            assert torch.equal(rest, whole)

    @torch.no_grad()
    def test_only_the_last_scores_are_computed_when_told_so(self):
        for model, given in self.generating():
            sequence = self.continues(model, given)
            target = {"decoder_input_ids": sequence} if model.config.is_encoder_decoder else {}
            whole = model(**given, **target, use_cache=False).logits
            last = model(**given, **target, use_cache=False, logits_to_keep=1).logits
            assert last.shape[1] == 1
            assert_close(last, whole[:, -1:])

    @torch.no_grad()
    def test_a_text_is_generated_without_being_given_any(self):
        for model, _ in self.generating():
            if model.config.is_encoder_decoder:
                pytest.skip("an encoder-decoder reads a source")
            options = {"max_new_tokens": NEW, "do_sample": False, "bos_token_id": 1}
            assert model.generate(**options).shape[0] == 1

    @torch.no_grad()
    def test_processors_of_scores_are_followed(self):
        for model, given in self.generating():
            sequence = model.generate(**given, **self.options(suppress_tokens=list(range(10)), repetition_penalty=1.3))
            assert (sequence[:, -NEW:] >= 10).all()
