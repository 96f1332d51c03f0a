"""Pretrained encoders made linear: a student with slots learns to do what its teacher does."""
