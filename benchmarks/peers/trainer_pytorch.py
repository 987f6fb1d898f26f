#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The qkflow authors
# SPDX-License-Identifier: MIT
"""The training step of benchmarks/trainer_benchmark.cpp in PyTorch: the same head, task, batch and rates, written the
way one would write it there. Debian: apt-get install python3-torch, then /usr/bin/python3 this file.

Prints seconds a step for CACO (length 128) and FAFO (length 64), batch 32, data made afresh every step, one thread. First
checks that the model is the one meant: the loss of zero weights must be log 50."""

import argparse
import math
import statistics
import time

import torch

VOCABULARY, CLASSES, COMMON, DISTINCT = 50, 4, 10, 10
WEIGHTS = torch.cat([torch.ones(COMMON), torch.arange(1, DISTINCT + 1) / DISTINCT])


def draw(batch, length):
    """Sequences of tokens (query last) and labels."""
    topic = torch.randint(CLASSES, (batch,))
    slot = torch.multinomial(WEIGHTS.expand(batch, -1), length - 2, replacement=True)
    context = torch.where(slot < COMMON, slot, slot + topic[:, None] * DISTINCT)
    return torch.cat([context, topic[:, None] + CLASSES + 1], 1), topic + 1


class Head(torch.nn.Module):
    def __init__(self, factorized):
        super().__init__()
        layer = lambda: torch.nn.Linear(VOCABULARY, VOCABULARY, bias=False)
        self.key, self.value = layer(), layer()
        self.query, self.output = (layer(), layer()) if factorized else (None, None)

    def forward(self, tokens):
        x = torch.nn.functional.one_hot(tokens, VOCABULARY).float()
        q = x[:, -1:]
        if self.query is not None:
            q = self.query(q)
        scores = q @ self.key(x).transpose(1, 2) / math.sqrt(VOCABULARY)
        z = torch.softmax(scores, -1) @ self.value(x)
        return (z if self.output is None else self.output(z))[:, 0]


def measure(factorized, length, steps, repetitions):
    torch.manual_seed(1234)
    head = Head(factorized)
    with torch.no_grad():
        kept = [p.clone() for p in head.parameters()]
        for p in head.parameters():
            p.zero_()
        tokens, labels = draw(32, length)
        loss = torch.nn.functional.cross_entropy(head(tokens), labels).item()
        assert abs(loss - math.log(VOCABULARY)) < 1e-5, loss
        for p, k in zip(head.parameters(), kept):
            p.copy_(k)
    attention = [p for n, p in head.named_parameters() if n.startswith(("key", "query"))]
    output = [p for n, p in head.named_parameters() if n.startswith(("value", "output"))]
    optimizer = torch.optim.SGD([{"params": attention, "lr": 0.05}, {"params": output, "lr": 0.01}])
    times = []
    for _ in range(repetitions + 1):  # the first warms up
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            tokens, labels = draw(32, length)
            loss = torch.nn.functional.cross_entropy(head(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        times.append(((time.perf_counter() - start) / steps, (time.process_time() - cpu) / steps))
    wall, cpu = zip(*times[1:])
    name = "FAFO" if factorized else "CACO"
    print(f"{name} length {length}: median {1e6 * statistics.median(wall):.0f} us a step "
          f"({1e6 * min(wall):.0f} to {1e6 * max(wall):.0f}), processor time {1e6 * statistics.median(cpu):.0f} us")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"PyTorch {torch.__version__}, {arguments.threads} threads")
    measure(False, 128, arguments.steps, arguments.repetitions)
    measure(True, 64, arguments.steps, arguments.repetitions)
