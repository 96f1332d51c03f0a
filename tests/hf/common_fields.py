"""Stands in for transformers' `tests/utils/test_configuration_utils.py`: fields that every configuration keeps."""

config_common_kwargs = {
    "architectures": ["AnyModel"],
    "chunk_size_feed_forward": 5,
    "dtype": "float16",
    "id2label": {0: "yes", 1: "no", 2: "perhaps"},
    "label2id": {"yes": 0, "no": 1, "perhaps": 2},
    "output_attentions": True,
    "output_hidden_states": True,
    "problem_type": "regression",
    "return_dict": False,
}
