"""Loads a checkpoint on a device, answers two requests at once and prints what it took as JSON.

python tools/answer.py FOLDER DEVICE
"""

import json
import sys
import time

import torch

from relight.base.settings import Settings
from relight.base.types import Request, SamplingParams
from relight.engine.assemble import assemble

PROMPTS = {"short": 40, "long": 3000}
NUM_TOKENS = 24


def main() -> None:
    folder, device = sys.argv[1:]
    begun = time.perf_counter()
    settings = Settings(
        model=folder, device=device, max_context=8192, num_slots=4, cache_bytes=2**30
    )
    loop, info = assemble(settings, lambda done, total: None)
    loaded_s = time.perf_counter() - begun
    for name, length in PROMPTS.items():
        prompt = tuple((17 * i + 3) % 100_000 for i in range(length))
        sampling = SamplingParams(temperature=1.0, seed=7, max_tokens=NUM_TOKENS)
        loop.add(Request(id=name, prompt=prompt, sampling=sampling))
    tokens: dict[str, list[int]] = {name: [] for name in PROMPTS}
    finish: dict[str, str] = {}
    made_s = []
    begun = time.perf_counter()
    while len(finish) < len(PROMPTS):
        step = time.perf_counter()
        deltas = loop.step()
        if len(deltas) == len(PROMPTS):  # both make tokens: a step without given rows
            made_s.append(time.perf_counter() - step)
        for delta in deltas:
            tokens[delta.id] += delta.tokens
            if delta.finish:
                finish[delta.id] = delta.finish
    answered = all(len(made) == NUM_TOKENS for made in tokens.values())
    print(
        json.dumps(
            {
                "answered": answered and set(finish.values()) == {"length"},
                "load_s": round(loaded_s, 1),
                "both_answers_s": round(time.perf_counter() - begun, 1),
                "decode_step_of_two_ms": round(1e3 * sorted(made_s)[len(made_s) // 2], 1),
                "different_tokens": len({t for made in tokens.values() for t in made}),
                "memory": dict(info.memory),
                "operator": info.operator,
                "peak_device_gb": round(torch.accelerator.max_memory_allocated() / 1e9, 2)
                if device != "cpu"
                else None,
            }
        )
    )
    sys.exit(0 if answered else 1)


if __name__ == "__main__":
    main()
