from __future__ import annotations

from collections.abc import Callable

import pytest

from inferswarm.errors import SpecError
from inferswarm.resources import quantities


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (quantities.size_bytes, "32 GiB", 32 * 2**30),
        (quantities.size_bytes, "1.5GB", 1_500_000_000),
        (quantities.size_bytes, "400 MB", 400_000_000),
        (quantities.size_bytes, "64 kB", 64_000),
        (quantities.size_bytes, "64 KiB", 65_536),
        (quantities.size_bytes, "0 B", 0),
        (quantities.bits_per_second, "1 Gbit/s", 10**9),
        (quantities.bits_per_second, "2.5 Gbit/s", 2_500_000_000),
        (quantities.bits_per_second, "100Mbit/s", 10**8),
        (quantities.bytes_per_second, "51.2 GB/s", 51.2e9),
        (quantities.bytes_per_second, "1 GiB/s", 2.0**30),
        (quantities.flops_per_second, "35 TFLOP/s", 35e12),
        (quantities.flops_per_second, "770 GFLOP/s", 770e9),
        (quantities.seconds, "250 us", 0.00025),
        (quantities.seconds, "250 µs", 0.00025),
        (quantities.seconds, "0.2 ms", 0.0002),
        (quantities.seconds, "0 s", 0.0),
        (quantities.seconds, "40 ns", 4e-8),
    ],
)
def test_quantities_are_read_exactly(read: Callable[[str, str], float], text: str, value: float) -> None:
    assert read(text, "field") == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "32",
        "GiB",
        "32 GIB",
        "32 gb",
        "32 Gb",
        "-1 GB",
        "+1 GB",
        "1e3 GB",
        "nan GB",
        "inf GB",
        "1,5 GB",
        "32  GB",
        "32 GB more",
        "32 GB/s",
        "1 Gbit/s",
        "٣٢ GB",
        "9" * 19 + " B",
        "9007199254740993 B",
        "9 PB" * 2,
        "10 PB",
    ],
)
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(SpecError, match="capacity of it") as caught:
        quantities.size_bytes(text, "capacity of it")
    assert caught.value.found == text


@pytest.mark.parametrize("text", ["1 Gb/s", "1 GB/s", "1 gbit/s", "1 Gbps", "1", "0 Gbit/s", "0.0 bit/s"])
def test_what_is_no_rate_of_bits_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        quantities.bits_per_second(text, "rate")


@pytest.mark.parametrize("text", ["51.2 GB", "51.2 Gbit/s", "0 GB/s"])
def test_what_is_no_rate_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        quantities.bytes_per_second(text, "read_bandwidth")


@pytest.mark.parametrize("text", ["1 TFLOPS", "1 TFLOP", "1 mFLOP/s", "0 TFLOP/s", "1 T/s"])
def test_what_is_no_rate_of_operations_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        quantities.flops_per_second(text, "arithmetic")


@pytest.mark.parametrize("text", ["250", "250 US", "1 min", "1 Ms", "-1 ms"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        quantities.seconds(text, "latency")
