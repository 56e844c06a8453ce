"""Targets: reading them from every form, near misses, identity, what can run where."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched import hardware
from metasched.errors import TargetError
from metasched.hardware import CPU_FEATURES, KNOWN_FEATURES
from metasched.target import KINDS, TARGETS, Target, register_target, target_kind


def test_native_describes_this_machine():
    target = Target.of(None)
    assert target is Target.of("native") is Target.of(target)
    assert target.kind == "cpu" and target.num_cores >= 1
    assert target.vector_bits in (128, 256, 512)
    assert target.has("sse2") or target.arch != "x86_64"


def test_native_features_agree_with_llvm():
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    theirs = llvm.get_host_cpu_features()
    target = Target.native()
    for name in KNOWN_FEATURES[target.arch]:
        assert target.has(name) == theirs.get(name, False), name


def test_reading_a_target_imports_no_compiler():
    code = (
        "import sys; from metasched.target import Target; Target.native(); "
        "assert 'llvmlite' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tags_of_the_reference_system():
    gpu = Target.of("nvidia/geforce-rtx-3080")
    assert (gpu.kind, gpu.mcpu, gpu.warp_size) == ("cuda", "sm_86", 32)
    assert (gpu.max_threads_per_block, gpu.max_shared_memory_per_block) == (1024, 49152)
    assert gpu.registers_per_block == 65536
    assert Target.of("nvidia/nvidia-v100").mcpu == "sm_70"
    assert Target.of("nvidia/nvidia-h100").mcpu == "sm_90a"
    cpu = Target.of("aws/cpu/c5.9xlarge")
    assert (cpu.mcpu, cpu.num_cores, cpu.vector_bits) == ("skylake-avx512", 18, 512)


def test_text_with_options_and_mapping_with_foreign_spelling():
    text = Target.of("llvm -mcpu=haswell -num-cores=4")
    assert (text.mcpu, text.num_cores, text.vector_bits, text.vector_registers) == (
        "haswell", 4, 256, 16,
    )  # fmt: skip
    assert text == Target.of({"kind": "llvm", "mcpu": "haswell", "num-cores": 4})
    assert Target.of({"kind": "cuda", "arch": "sm_80", "thread_warp_size": 32}).mcpu == "sm_80"
    assert Target.of({"tag": "aws/cpu/c5.9xlarge", "num_cores": 2}).num_cores == 2
    assert Target.of("llvm -mcpu haswell -num-cores 4") == text


def test_processors_of_aarch64():
    """The name of a processor gives the triple; versions of the architecture are features."""
    v1 = Target.of("llvm -mcpu=neoverse-v1 -num-cores=4")
    assert (v1.arch, v1.vector_bits, v1.vector_registers) == ("aarch64", 128, 32)
    assert v1.has("dotprod", "i8mm", "bf16") and not Target.of("llvm -mcpu=cortex-a72").has("bf16")
    tvm = Target.of("llvm -device=arm_cpu -mtriple=aarch64-linux-gnu -mattr=+v8.4a,+fullfp16")
    assert set(tvm.features) == {"neon", "dotprod", "fullfp16"} and tvm.mcpu == "generic"
    assert Target.of("raspberry-pi/4b-aarch64").mcpu == "cortex-a72"
    assert Target.of("aws/cpu/c7g.4xlarge").num_cores == 16
    assert "-sve" in Target.of("llvm -mcpu=apple-m2").llvm_features.split(",")
    assert "-amx-tile" in Target.of("llvm -mcpu=sapphirerapids -mattr=-amx-tile").llvm_features


def test_names_of_processors_that_are_read_from_numbers(tmp_path, monkeypatch):
    text = "processor: 0\nFeatures: fp asimd asimddp asimdhp i8mm bf16 sve\n"
    text += "CPU implementer: 0x41\nCPU part: 0xd40\n\nprocessor: 1\n"
    (tmp_path / "cpuinfo").write_text(text)
    fields = hardware._cpuinfo(str(tmp_path / "cpuinfo"))
    monkeypatch.setattr(hardware, "_cpuinfo", lambda: fields)
    features = hardware.native_features("aarch64")
    assert features == {"neon", "dotprod", "fullfp16", "i8mm", "bf16", "sve"}
    assert hardware.native_cpu("aarch64", features)[0] == "neoverse-v1"


def test_signed_features_edit_and_unsigned_features_replace():
    """As in LLVM and TVM; without sse2 LLVM could not pass a float on x86-64 and would abort."""
    x86 = {"triple": "x86_64-unknown-linux-gnu", "mcpu": "x86-64-v3"}
    text = Target.of({**x86, "mattr": "+avx512f,-avx2,-nothing"})
    v3 = CPU_FEATURES["x86_64"]["x86-64-v3"]
    assert {*text.features} == {*v3, "avx512f", "sse", "sse2"} - {"avx2"}
    assert Target.of({**x86, "mattr": "-sse2"}).has("sse2")
    assert Target.of({**x86, "features": ["avx2"]}).features == ("avx2", "sse", "sse2")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nvidia/geforce-rtx-308", "did you mean nvidia/geforce-rtx-3080"),
        ("lvm", "did you mean llvm"),
        ("llvm mcpu", "'mcpu' is no option; write -name=value"),
        ("llvm '", "cannot be read"),
        ('{"kind": "llvm",', "is no JSON: Expecting property name"),
        ({"kind": "llvm", "num_coers": 3}, "did you mean num_cores"),
        ({"kind": "lvm"}, "no target kind is called 'lvm'; did you mean llvm"),
        (
            {"mcpu": "hasswell"},
            "'hasswell' is not known; give its features as a list; did you mean haswell",
        ),
        (
            "llvm -mcpu=neoverse-v1 -mtriple=x86_64-linux-gnu",
            "'neoverse-v1' is a processor of aarch64, the triple is of x86_64",
        ),
        ({"features": ["avx512vnii"]}, "did you mean avx512vnni"),
        ({"features": 3}, "list of names"),
        ({"num_cores": "many"}, "'num_cores' is a number"),
        ({"num_cores": 0}, "at least one core"),
        ({"num_cores": -1}, "number from 0"),
        ({"mcpu": 3}, "'mcpu' is a text"),
        ({"kind": "cuda", "arch": "86"}, "like sm_86"),
        (3, "not int"),
        ("llvm -num-cores=100000", "num_cores is 100000; a CPU has at least one core and at most"),
        ("llvm -num-cores", "'-num-cores' is no option"),
        ("llvm -num-cores -mcpu=haswell", "'-num-cores' is no option"),
        ({"l2_bytes": 1 << 70}, "whole number from 0 to"),
        ({"l2_bytes": 10**5000}, "int of too many digits"),
        ({"l2_bytes": 1.5}, "not 1.5"),
        ({"vector_bits": 100}, "vector_bits is 100; it is one of 0, 64, 128"),
        ({3: 4}, "fields by name, not 3"),
        ({"kind": []}, "no target kind is called []"),
        ("x" * 10_000, "x..."),
    ],
)
def test_bad_targets_are_explained(source, message):
    with pytest.raises(TargetError) as caught:
        Target.of(source)
    assert message in str(caught.value)


CPUS = [f"llvm -mcpu={name}" for names in CPU_FEATURES.values() for name in names]


@given(st.sampled_from([*TARGETS.names(), *CPUS]))
def test_json_round_trip_keeps_identity(name):
    target = Target.of(name)
    again = Target.of(json.loads(json.dumps(target.to_json())))
    assert again == target and again.key == target.key and hash(again) == hash(target)


def test_keys_tell_targets_apart_and_ignore_the_model():
    base = Target.of("llvm -mcpu=haswell -num-cores=4")
    assert base.key == Target.of({**base.to_json(), "model": "other"}).key
    assert base.key != Target.of({**base.to_json(), "num_cores": 8}).key
    assert base.key != Target.of({**base.to_json(), "l2_bytes": 1}).key


def test_supports_names_what_is_missing():
    old, new = Target.of("llvm -mcpu=haswell"), Target.of("llvm -mcpu=cascadelake")
    assert new.supports(old) is None
    reason = old.supports(new)
    assert reason is not None and reason.startswith("this target lacks the CPU features avx512bw")
    one = Target.of({**new.to_json(), "features": [*old.features, "avx512f"]})
    assert old.supports(one) == "this target lacks the CPU feature avx512f"
    gpu = Target.of("nvidia/nvidia-v100")
    assert "kind 'cuda'" in str(new.supports(gpu))
    arm = Target.of({"triple": "aarch64-unknown-linux-gnu", "mcpu": "neoverse-n1"})
    assert "made for aarch64" in str(new.supports(arm))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("cuda -arch=sm_80", "no code generation for GPUs"),
        ("nvidia/nvidia-h100", "no code generation for GPUs"),
        ("llvm -mtriple=riscv64-linux-gnu", "it was made for riscv64"),
        ({"triple": f"{Target.native().arch}-pc-windows-msvc"}, "this machine runs Linux"),
        ({"triple": f"{Target.native().arch}-linux-gnux32"}, "this machine runs Linux"),
    ],
)
def test_require_here_names_why_a_target_cannot_run(source, why):
    with pytest.raises(TargetError, match="cannot be loaded here: .*" + why) as caught:
        Target.of(source).require_here()
    assert "\n" not in str(caught.value)


def test_a_target_of_more_cores_than_there_are_is_built_for_but_not_timed():
    many = replace(Target.native(), num_cores=8000)
    many.require_here()
    with pytest.raises(TargetError, match="cannot be timed here: the target has 8000 cores"):
        many.require_here(timed=True)
    Target.native().require_here(timed=True)


def test_supports_on_gpus():
    v100, a100, h100 = (Target.of(f"nvidia/nvidia-{n}") for n in ("v100", "a100", "h100"))
    assert a100.supports(v100) is None
    assert "sm_80" in str(v100.supports(a100))
    newer = Target.of({"kind": "cuda", "arch": "sm_100"})
    assert "sm_90a" in str(newer.supports(h100))
    big = Target.of({**v100.to_json(), "max_shared_memory_per_block": 99999})
    assert "max_shared_memory_per_block 99999" in str(v100.supports(big))


def test_differences_are_listed():
    a = Target.of("llvm -mcpu=haswell -num-cores=4")
    b = Target.of("llvm -mcpu=cascadelake -num-cores=8")
    text = "; ".join(a.differences(b))
    assert "num_cores 8 instead of 4" in text and "features only there: avx512bw" in text
    assert "features only here: avx512bw" in "; ".join(b.differences(a))
    assert a.differences(a) == []


def test_llvm_features_switch_off_what_is_absent():
    words = Target.of("llvm -mcpu=haswell").llvm_features.split(",")
    assert "+avx2" in words and "-avx512f" in words


def test_unknown_feature_question_is_an_error():
    with pytest.raises(TargetError, match="did you mean avx2"):
        Target.native().has("avx22")


def test_taken_tag_is_refused():
    with pytest.raises(TargetError, match="registered already"):
        register_target("nvidia/nvidia-v100", {"kind": "cuda", "arch": "sm_70"})


def test_a_kind_of_target_is_a_class(monkeypatch):
    """Its fields are read from texts and mappings, and its words are near misses of others."""
    monkeypatch.setattr(KINDS, "_items", dict(KINDS._items))

    @target_kind("systolic", "tpu")
    @dataclass(frozen=True, slots=True)
    class Systolic(Target):
        kind: str = "systolic"
        rows: int = 16

        def runs(self, other):
            return None if self.rows >= other.rows else f"it needs {other.rows} rows"

    found = Target.of("tpu -rows=32")
    assert found == Target.of({"kind": "systolic", "rows": 32}) == Target.of(found.to_json())
    assert isinstance(found, Systolic) and found.key.startswith("systolic/")
    assert Target.of("tpu").rows == 16 and found.supports(Target.of("tpu")) is None
    assert Target.of("tpu").supports(found) == "it needs 32 rows"
    assert "kind 'cpu'" in found.supports(Target.native())
    with pytest.raises(TargetError, match="'rows' is a number"):
        Target.of("tpu -rows=many")
    with pytest.raises(TargetError, match="no 'row'; did you mean rows"):
        Target.of("tpu -row=3")
    with pytest.raises(TargetError, match="cannot be loaded here: there is no code generation"):
        found.require_here()
    with pytest.raises(TargetError, match="have no machine model"):
        found.machine_model()


def test_targets_stored_by_earlier_versions_keep_their_keys():
    """The JSON of a CPU names the limits of GPUs as 0, and is read with them."""
    cpu = Target.of({"mcpu": "haswell", "num_cores": 4, "triple": "x86_64-unknown-linux-gnu"})
    assert cpu.to_json()["warp_size"] == 0 and cpu.key == "cpu/haswell/4/e90d955a276c"
    gpu = Target.of("nvidia/nvidia-a100")
    assert gpu.to_json()["l2_bytes"] == 0 and gpu.key == "cuda/sm_80/b76436316bac"


def test_lines_of_another_core_cost_what_was_measured_on_the_cpu():
    cost = {cpu: Target.of(f"llvm -mcpu={cpu} -num-cores=2").machine_model().transfer
            for cpu in ("znver5", "skylake-avx512")}  # fmt: skip
    assert cost == {"znver5": 12.0, "skylake-avx512": 100.0}
