"""Cost and tightness of the certificates: intervals, CROWN-IBP and CROWN on digits and on a narrow ResNet-18.

python benchmarks/bench_certified.py            # digits
python benchmarks/bench_certified.py --resnet   # one CIFAR-sized image, the scaled-down network of the paper
python benchmarks/bench_certified.py --resnet --width 16 --images 10   # a wider one: a line an image, time and peak memory
"""

import argparse
import resource
import time
from typing import get_args

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sparring as sp
from harness import interleave
from sparring.attacks import PGD
from sparring.lab.models.resnet import ResNet18
from sparring.lab.models.small_cnn import SmallCNN
from sparring.metrics import certify, robust_accuracy
from sparring.metrics.certified.crown import Method


def digits() -> tuple[Tensor, Tensor]:
    raw = load_digits()
    x, y = torch.tensor(raw.images / 16, dtype=torch.float32)[:, None], torch.tensor(raw.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order], y[order]


def trained(x: Tensor, y: Tensor, seed: int, epochs: int = 20) -> nn.Module:
    torch.manual_seed(seed)
    net = SmallCNN(size=8, channels=(8, 16), hidden=32)
    optimiser = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
    return net.eval()


def on_digits() -> None:
    x, y = digits()
    members = [trained(x[:1297], y[:1297], seed) for seed in range(3)]
    test_x, test_y = x[1297:1397], y[1297:1397]
    methods: tuple[Method, ...] = get_args(Method)
    print("share of 100 digits certified, ensemble of 3 small CNNs (mean logit); PGD is the upper limit")
    print(f"{'radius':>8}" + "".join(f"{method:>12}" for method in methods) + f"{'PGD':>12}")

    class MeanLogit(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return torch.stack([member(inputs) for member in members]).mean(0)

    for radius in (0.005, 0.01, 0.02, 0.04, 0.08):
        ball = sp.Linf(radius, box=(0, 1))
        shares = [certify(members, test_x, test_y, ball, method=method).share for method in methods]
        attacked = robust_accuracy(MeanLogit(), PGD(ball, steps=40, loss="margin"), test_x, test_y).plain
        print(f"{radius:>8}" + "".join(f"{100 * share:>11.0f}%" for share in (*shares, attacked)))

    def work(method: Method) -> object:
        return certify(members, test_x[:20], test_y[:20], sp.Linf(0.02, box=(0, 1)), method=method)

    with torch.no_grad():
        timed = interleave(
            ("forward pass", lambda: MeanLogit()(test_x[:20])),
            {method: lambda method=method: work(method) for method in methods},  # type: ignore[misc]
            rounds=5,
            repeats=1,
        )
    print("\ntime for 20 digits, relative to one forward pass")
    for ratio in timed.values():
        print(ratio.row())


def on_resnet(width: int, radius: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = ResNet18(width=width).eval()
    image = torch.rand(1, 3, 32, 32)
    target = net(image).argmax(1)
    for memory in (2**24, 2**26, 2**28):
        start = time.process_time()
        lower = certify(net, image, target, sp.Linf(radius), memory=memory).lower.item()
        spent = time.process_time() - start
        print(
            f"ResNet-18 width {width}, memory {memory >> 20:>4} MB: {spent:6.1f} s CPU, margin {lower:.6f}", flush=True
        )


def on_images(width: int, images: int, radius: float) -> None:
    """One call of `certify`, at its default memory, on random images and a network with random weights."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = ResNet18(width=width).eval()
    x = torch.rand(images, 3, 32, 32)
    targets = net(x).argmax(1)
    before, start, done = peak(), time.process_time(), 0

    def progress(where: str, share: float) -> None:
        nonlocal done
        if (through := int(images * share + 1e-6)) > done:
            done, spent = through, time.process_time() - start
            print(f"image {done:>2} of {images}: {spent:7.1f} s CPU so far, at most {peak():5.2f} GiB", flush=True)

    found = certify(net, x, targets, sp.Linf(radius), progress=progress)
    spent = time.process_time() - start
    print(
        f"margins {', '.join(f'{margin:.4f}' for margin in found.lower.tolist())}; {100 * found.share:.0f} % certified"
    )
    print(
        f"ResNet-18 width {width}, {images} images, Linf({radius}): {spent:.0f} s CPU, {spent / images:.1f} s an image, "
        f"{before:.2f} GiB before, at most {peak():.2f} GiB"
    )


def peak() -> float:
    """The most memory that the process ever had, in GiB (Linux)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resnet", action="store_true")
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--images", type=int, help="certify so many at once, instead of one with three sizes of memory")
    parser.add_argument("--radius", type=float, default=0.0005)
    options = parser.parse_args()
    if options.images is not None:
        on_images(options.width, options.images, options.radius)
    elif options.resnet:
        on_resnet(options.width, options.radius)
    else:
        on_digits()
