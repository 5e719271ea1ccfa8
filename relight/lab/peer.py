"""transformers' layer of V4, to be timed beside ours. Knows nothing of ours."""

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

VOCABULARY = 1024  # embedding and head are not timed
WARM, READS = 2, 3  # runs that do not count, and how often a prompt is read for its time


def wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class Peer:
    """transformers' DeepseekV4 with one CSA layer and a small vocabulary, random weights, bfloat16.
    Raises ImportError where transformers is missing or too old."""

    def __init__(self, device: torch.device, context: int, num_experts: int) -> None:
        from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

        make: Any = DeepseekV4ForCausalLM
        fields: dict[str, Any] = {
            "vocab_size": VOCABULARY,
            "num_hidden_layers": 1,
            "num_hash_layers": 0,
            "compress_ratios": [4],
            "n_routed_experts": num_experts,
        }
        with torch.device("meta"):
            self.model = make(DeepseekV4Config(**fields))
        self.model.to(torch.bfloat16)
        self.model.to_empty(device=device)
        for parameter in self.model.parameters():
            parameter.data.normal_(0, 0.02)
        for buffer in self.model.buffers():
            if buffer.is_floating_point():
                buffer.data.fill_(0.01)
        self.model.eval()
        self.device, self.layer_ms = device, 0.0
        layer = self.model.model.layers[0]
        layer.register_forward_pre_hook(self._begin)
        layer.register_forward_hook(self._end)
        ids = torch.arange(context, device=device) % 1000
        with torch.inference_mode():
            out = self.model(input_ids=ids[None], use_cache=True, logits_to_keep=1)
        # 5.24 renamed past_key_values
        self.keyword = "cache" if "cache" in out else "past_key_values"
        self.cache = out[self.keyword]

    def _begin(self, *_: object) -> None:
        wait(self.device)
        self.begun = time.perf_counter()

    def _end(self, *_: object) -> None:
        wait(self.device)
        self.layer_ms = 1e3 * (time.perf_counter() - self.begun)

    def step(self) -> float:
        """Milliseconds in the layer for one token after the context (which grows by it)."""
        token = torch.tensor([[5]], device=self.device)
        with torch.inference_mode():
            self.model(input_ids=token, use_cache=True, **{self.keyword: self.cache})
        return self.layer_ms

    def read(self, rows: int) -> float:
        """Milliseconds in the layer for a prompt of `rows` tokens without a context."""
        ids = torch.arange(rows, device=self.device) % 1000
        with torch.inference_mode():
            self.model(input_ids=ids[None], use_cache=False, logits_to_keep=1)
        return self.layer_ms


def layer_times(
    device: torch.device, context: int, chunks: Sequence[int], num_experts: int, rounds: int
) -> Iterator[dict[str, Any]]:
    """Microseconds of one token through the layer and of prompts, or why not: the library may be
    missing, or need more memory than there is."""
    try:
        peer = Peer(device, context, num_experts)
        yield _line(1, context, [peer.step() for _ in range(rounds + WARM)])
        for rows in chunks:
            yield _line(rows, 0, [peer.read(rows) for _ in range(READS + WARM)])
    except (ImportError, RuntimeError, ValueError) as error:
        yield {"why_not": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}


def _line(rows: int, context: int, milliseconds: Sequence[float]) -> dict[str, Any]:
    times = [1e3 * one for one in milliseconds[WARM:]]
    return {
        "layer": "csa",
        "rows": rows,
        "context": context,
        "us": round(statistics.median(times), 1),
        "least_us": round(min(times), 1),
        "most_us": round(max(times), 1),
    }
