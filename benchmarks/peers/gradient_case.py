# SPDX-FileCopyrightText: 2026 The qkflow authors
# SPDX-License-Identifier: MIT
"""What the peers of benchmarks/gradient_benchmark.cpp share: the case it wrote, the comparison with its result, the clock.

A peer is a class Gradient(case): made once, then called as loss, g_qk, g_ov = gradient() with -dL/dW in the layout of the
case. One line goes to standard output for each: name, seconds (median, least, most), errors of loss and gradient."""

import argparse
import os
import statistics
import sys
import time


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="where gradient_benchmark wrote the case")
    parser.add_argument("--scalar", choices=["float", "double"], default="double")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.5, help="to measure each variant for")
    chosen = parser.parse_args()
    # Read by the numerical libraries when they are first loaded: import this module before them.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(chosen.threads)
    return chosen


class Case:
    """Arrays of the case, weights in the scalar asked for."""

    def __init__(self, chosen):
        import numpy as np

        read = lambda name, kind: np.fromfile(os.path.join(chosen.folder, name), kind)
        self.scalar = np.dtype(np.float32 if chosen.scalar == "float" else np.float64)
        sizes = read("sizes.i64", "<i8")
        self.sequences, self.entries, self.queries, self.tokens, self.classes = (int(n) for n in sizes)
        self.query = read("query.i32", "<i4").astype(np.int64)
        self.label = read("label.i32", "<i4").astype(np.int64)
        self.token = read("token.i32", "<i4").astype(np.int64).reshape(self.sequences, self.entries)
        self.null_count = read("null_count.f64", "<f8").astype(self.scalar)
        self.w_qk = read("w_qk.f64", "<f8").reshape(self.queries, self.tokens).astype(self.scalar)
        self.w_ov = read("w_ov.f64", "<f8").reshape(self.tokens, self.classes).astype(self.scalar)  # a row a token
        self.loss = float(read("loss.f64", "<f8")[0])
        self.g_qk = read("g_qk.f64", "<f8").reshape(self.queries, self.tokens)
        self.g_ov = read("g_ov.f64", "<f8").reshape(self.tokens, self.classes)

    def errors(self, loss, g_qk, g_ov):
        """Of the loss, relative; of the gradient, the largest difference over the largest entry of its matrix."""
        import numpy as np

        part = lambda found, right: float(np.abs(np.asarray(found) - right).max() / np.abs(right).max())
        return abs(float(loss) / self.loss - 1), max(part(g_qk, self.g_qk), part(g_ov, self.g_ov))


def report(name, gradient, case, seconds):
    """Checks a peer, then times it for so long, at least five calls."""
    loss_error, gradient_error = case.errors(*gradient())
    allowed = 2e-5 if case.scalar.itemsize == 4 else 1e-12
    if not max(loss_error, gradient_error) < allowed:
        sys.exit(f"{name}: errors {loss_error:.1e}, {gradient_error:.1e} are more than rounding")
    gradient()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds or len(times) < 5:
        start = time.perf_counter()
        gradient()
        times.append(time.perf_counter() - start)
    print(f"{name}\t{statistics.median(times)}\t{min(times)}\t{max(times)}\t{loss_error}\t{gradient_error}", flush=True)
