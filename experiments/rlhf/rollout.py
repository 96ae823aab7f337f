"""A rollout worker: generate completions with the newest weights, and put them into the queue."""

import argparse
from typing import Any

import torch

from experiments.rlhf.task import COMPLETIONS, LENGTH, model, prompt, tokenizer
from torchloom_threadlet import attach
from torchloom_threadlet.rollouts import RolloutSink


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    work(parser.parse_args().seed)


def work(seed: int) -> None:
    """Generate until the worker is drained."""
    torch.set_num_threads(1)
    words, policy = tokenizer(), model(seed).eval()

    loom = attach(role="rollout")
    sink = RolloutSink(loom=loom)
    while True:
        if (weights := sink.newer_weights()) is not None:
            policy.load_state_dict(weights)
        (position,) = positions = sink.positions(1)
        torch.manual_seed(seed * 1_000_003 + position)
        sink.put(generate(policy, words, prompt(position)), positions)
        if not loom.step(**sink.metrics()):
            break


@torch.no_grad()
def generate(policy: Any, words: Any, asked: str) -> dict[str, list[Any]]:
    """Return the completions of a prompt, with the log-probability of each token."""
    prompt_ids = words(asked)["input_ids"]
    ids = torch.tensor([prompt_ids] * COMPLETIONS)
    logprobs = []
    for _ in range(LENGTH):
        scores = policy(ids).logits[:, -1].log_softmax(-1)
        chosen = scores.exp().multinomial(1)
        logprobs.append(scores.gather(1, chosen))
        ids = torch.cat((ids, chosen), 1)
    return {
        "prompt_ids": [prompt_ids] * COMPLETIONS,
        "completion_ids": ids[:, len(prompt_ids) :].tolist(),
        "logprobs": torch.cat(logprobs, 1).tolist(),
        "asked": [asked] * COMPLETIONS,
    }


if __name__ == "__main__":
    main()
