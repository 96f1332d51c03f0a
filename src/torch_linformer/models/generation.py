"""``generate`` with our cache."""

from typing import Any

from transformers import GenerationConfig
from transformers.generation.configuration_utils import GenerationMode

from torch_linformer.models.arguments import CACHE
from torch_linformer.models.cache import LinformerCache


class GenerationWithOurCache:
    """What ``generate`` must know of models that continue from a :class:`LinformerCache`; a base before its mixin."""

    config: Any
    _is_stateful = True  # sums cannot be undone, so assisted generation is impossible

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> bool:
        """A :class:`LinformerCache`, unless the user gave a cache or turned caching off."""
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r}: Linformer has one cache, whose size "
                "does not grow; leave cache_implementation out"
            )
        if generation_config.use_cache is not False and model_kwargs.get(CACHE) is None:
            config = self.config.get_text_config(decoder=True)
            model_kwargs[CACHE] = LinformerCache(config.num_hidden_layers)
        return True
