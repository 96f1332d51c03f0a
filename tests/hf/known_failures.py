"""What of transformers' own tests our models fail, and why. One that passes after all turns red.

A name alone is that of the test in every class.
"""

CLASSES = 11  # of tests, all of which must be there before a name can be called unused

EXPECTED = {
    "TestForCausalLM::test_retain_grad_hidden_states_attentions": (
        "weights of causal attention are put together from chunks: copies beside the graph, as the docstring says"
    ),
    "TestForConditionalGeneration::test_retain_grad_hidden_states_attentions": "the same, of the decoder",
    "TestForConditionalGeneration::test_model_base_model_prefix": (
        "encoder and decoder are parts of one model; no model without its head stands around both"
    ),
    "TestForConditionalGeneration::test_resize_embeddings_untied": (
        "untied, source and target have vocabularies of their own, and one number cannot say which is meant: refused"
    ),
    "TestForConditionalGeneration::test_resize_embeddings_untied_no_reinit_on_post_init": (
        "refused for the same reason as test_resize_embeddings_untied"
    ),
    "TestSeq2SeqConfig::test_configuration[create_and_test_config_from_and_save_pretrained_composite]": (
        "both parts are of one class: LinformerConfig.from_pretrained cannot know which is wanted; it gives the first"
    ),
}
