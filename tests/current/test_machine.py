"""What a program is traced for, and what names of operations say."""

from types import SimpleNamespace

import jax
import pytest

from axonym.current.machine import (
    MACHINE,
    KernelCall,
    Machine,
    find_choice,
    find_iterations,
    find_kernel_call,
    find_platform,
    write_choice,
    write_iterations,
)


@pytest.mark.parametrize(
    ("backend", "kind", "platform"),
    [("gpu", "NVIDIA H100", "cuda"), ("gpu", "AMD", "rocm"), ("tpu", "v5", "tpu"), ("cpu", "", "cpu")],
)
def test_the_platform_is_that_of_the_machine_or_of_jax(monkeypatch, backend, kind, platform):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(device_kind=kind)])
    assert find_platform() == platform
    with MACHINE.using(Machine("tpu")):
        assert find_platform() == "tpu"


def test_a_name_says_what_a_kernel_computes():
    one = KernelCall("splash", 3 * 10**15, 7, 0)
    for source in (one.name, f"jit(f)/transpose(jvp(jit({one.name})))/pallas_call"):
        assert find_kernel_call(source) == one
    assert find_kernel_call("jit(kernel)/splash") is None


def test_a_name_says_why_an_implementation_was_chosen():
    name = write_choice("plain", 'k: "a" must be < 128 / 2')
    assert find_choice(f"jit(f)/jvp({name})/dot_general") == "plain: k: a must be  128  2"
    assert find_choice("jit(f)/attention/dot_general") is None


def test_a_name_says_how_long_a_loop_is():
    name = write_iterations(4.5)
    assert find_iterations(f"jit(f)/{name}/while") == 4.5
    # A loop inside of it is another one.
    assert find_iterations(f"jit(f)/{name}/while/body/while") is None
    assert find_iterations(f"jit(f)/{name}/dot_general") is None
