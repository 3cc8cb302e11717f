#!/usr/bin/env python3
"""The published routers' way, in a PyTorch process: both models in step over one batch.

Every step: the small model runs for all rows; each row takes the coin of our `fixed` router for its position; if any row
asks for the large model, that runs for the whole batch over the tokens it has not seen (so that its cache stays in step
for all rows), and the rows that asked take its token. Prints a line of JSON per line of JSON on its input:
{"prompts": token ids, "out": tokens}.

    python lockstep_torch.py SMALL_FOLDER LARGE_FOLDER bf16|f32 THREADS FRACTION
"""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, DynamicCache

import draw


class Pair:
    """Two models in one process."""

    def __init__(self, folders, dtype):
        self.models = [AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval() for folder in folders]

    def next_tokens(self, model, ids, cache):
        """The most likely next token of every row, of shape [rows, 1]."""
        logits = self.models[model](ids, past_key_values=cache, logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    @torch.inference_mode()
    def run(self, prompts, out, fraction):
        """One batch from its prompts to its end: times of the steps, the tokens, and the steps of the large model."""
        ids = torch.tensor(prompts)
        rows, length = ids.shape
        caches = [DynamicCache(), DynamicCache()]
        for model, cache in zip(self.models, caches):
            model(ids[:, :-1], past_key_values=cache, logits_to_keep=1)
        current = unseen = ids[:, -1:]
        marks, asked, large_steps = [], 0, 0
        for i in range(out):
            token = self.next_tokens(0, current, caches[0])
            large = torch.tensor([[draw.asks_large(row, length + i, fraction)] for row in range(rows)])
            if large.any():
                token = torch.where(large, self.next_tokens(1, unseen, caches[1]), token)
                unseen = token
                large_steps += 1
                asked += int(large.sum())
            else:
                unseen = torch.cat([unseen, token], 1)
            current = token
            marks.append(time.perf_counter())
        return marks, asked / rows / out, large_steps / out


def main():
    """Answer lines until the input ends."""
    small, large, dtype, threads, fraction = sys.argv[1:]
    torch.set_num_threads(int(threads))
    pair = Pair([small, large], {"bf16": torch.bfloat16, "f32": torch.float32}[dtype])
    fraction = draw.share(float(fraction))
    print(json.dumps({"torch": torch.__version__, "isa": torch.backends.cpu.get_cpu_capability()}), flush=True)
    for text in sys.stdin:
        job = json.loads(text)
        began, cpu = time.perf_counter(), time.process_time()
        marks, share, large_steps = pair.run(job["prompts"], job["out"], fraction)
        found = {"wall_s": marks[-1] - began, "cpu_s": time.process_time() - cpu, "marks": marks}
        print(json.dumps(found | {"large_share": share, "large_steps": large_steps}), flush=True)


if __name__ == "__main__":
    main()
