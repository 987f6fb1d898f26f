#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The qkflow authors
# SPDX-License-Identifier: MIT
"""The circuit gradient of benchmarks/gradient_benchmark.cpp in PyTorch, twice: by autograd, with the operations made for
it (embedding_bag is a weighted sum of rows, forward and backward), and written out by hand. Debian: apt-get install
python3-torch."""

import gradient_case

chosen = gradient_case.arguments()

import torch  # noqa: E402: after the number of threads is set


class Tensors:
    def __init__(self, case):
        self.case = case
        self.cell = torch.from_numpy(case.query[:, None] * case.tokens + case.token).flatten()
        self.token, self.label = torch.from_numpy(case.token), torch.from_numpy(case.label)
        self.null_count = torch.from_numpy(case.null_count)
        self.w_qk, self.w_ov = torch.from_numpy(case.w_qk), torch.from_numpy(case.w_ov)


class Autograd(Tensors):
    def __init__(self, case):
        super().__init__(case)
        self.w_qk.requires_grad_()
        self.w_ov.requires_grad_()

    def __call__(self):
        case = self.case
        score = self.w_qk.flatten().index_select(0, self.cell).view(case.sequences, case.entries)
        # The null tokens are one more position, of score 0 and value 0.
        with_null = torch.cat([score, self.null_count.log()[:, None]], 1)
        mass = torch.softmax(with_null, 1)[:, :-1]
        z = torch.nn.functional.embedding_bag(self.token, self.w_ov, per_sample_weights=mass.contiguous(), mode="sum")
        loss = torch.nn.functional.cross_entropy(z, self.label)
        g_qk, g_ov = torch.autograd.grad(loss, [self.w_qk, self.w_ov])
        return loss.item(), g_qk.neg_(), g_ov.neg_()


class ByHand(Tensors):
    @torch.no_grad()
    def __call__(self):
        case = self.case
        score = self.w_qk.flatten().index_select(0, self.cell).view(case.sequences, case.entries)
        with_null = torch.cat([score, self.null_count.log()[:, None]], 1)
        mass = torch.softmax(with_null, 1)[:, :-1]
        value = self.w_ov.index_select(0, self.token.flatten()).view(case.sequences, case.entries, case.classes)
        z = torch.bmm(mass[:, None, :], value)[:, 0]
        log_p = torch.log_softmax(z, 1)
        loss = torch.nn.functional.nll_loss(log_p, self.label)
        error = log_p.exp_().scatter_add_(1, self.label[:, None], torch.full_like(z[:, :1], -1)).div_(-case.sequences)
        alignment = torch.bmm(value, error[:, :, None])[:, :, 0]
        moved = mass * (alignment - (mass * alignment).sum(1, keepdim=True))
        g_qk = torch.zeros(case.queries * case.tokens, dtype=z.dtype).index_add_(0, self.cell, moved.flatten())
        spread = (mass[:, :, None] * error[:, None, :]).view(-1, case.classes)
        g_ov = torch.zeros_like(self.w_ov).index_add_(0, self.token.flatten(), spread)
        return loss.item(), g_qk.view(case.queries, case.tokens), g_ov


if __name__ == "__main__":
    torch.set_num_threads(chosen.threads)
    case = gradient_case.Case(chosen)
    for name, kind in (("autograd", Autograd), ("by hand", ByHand)):

        def detached(gradient=kind(case)):
            loss, g_qk, g_ov = gradient()
            return loss, g_qk.detach().numpy(), g_ov.detach().numpy()

        gradient_case.report(f"PyTorch {torch.__version__}, {name}", detached, case, chosen.seconds)
