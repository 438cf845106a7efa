"""A peft model's adapter: what moves and is stored, in place of the whole model."""

import sys
from typing import Any

from torch import Tensor, nn

from hessian_surgery.errors import InputError


def is_adapted(module: nn.Module) -> bool:
    """Whether a module is a peft model; peft is not imported for that."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(module, peft.PeftModel)


def own_state(module: nn.Module) -> dict[str, Tensor]:
    """A module's state, by the names that its file has: of a peft model, its adapter's alone.

    The tensors are the module's own, not copies.
    """
    if not is_adapted(module):
        return module.state_dict()
    from peft import get_peft_model_state_dict

    # "auto", the default, would ask a server whether the embeddings have been resized.
    adapter: Any = module
    state = get_peft_model_state_dict(adapter, adapter_name=adapter.active_adapter, save_embedding_layers=False)
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}


def own_names(module: nn.Module) -> dict[str, str]:
    """The name in `own_state` of each parameter, by its name in the module; others are left out."""
    stored = {tensor.data_ptr(): name for name, tensor in own_state(module).items() if tensor.numel()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: stored[p.data_ptr()] for name, p in every if p.data_ptr() in stored}


def refuse_merged(module: nn.Module) -> None:
    """Raise an InputError if a peft model answers with its base weights alone, as a merged one."""
    if is_adapted(module):
        from peft.tuners.tuners_utils import BaseTunerLayer

        if any(isinstance(layer, BaseTunerLayer) and layer.merged for layer in module.modules()):
            raise InputError(
                "model: its adapter is merged into the base weights, so moving it would change nothing; call "
                "unmerge_adapter() first"
            )


def refuse_beside_adapter(module: nn.Module, moving: tuple[str, ...]) -> None:
    """Raise an InputError if weights of a peft model would move that are not the adapter's."""
    if is_adapted(module):
        own = own_names(module)
        other = next((name for name in moving if name not in own), None)
        if other is not None:
            raise InputError(
                f"parameters: {other!r} would move, but it is not the adapter's; freeze it, or give parameters='*lora*'"
            )
