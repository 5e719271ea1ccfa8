import torch

from relight.kernels.canary import Trial, check
from relight.kernels.select import OPS, Selection, Variant, choose

FAST = Variant("linear", "step", "cuda", ("CUDA", "sm_70", "FP8 blocks of 128"))
PROVEN = Variant("experts", "step", "cuda", ("CUDA",), proven=("sm_70",))
ALL = ("CUDA", "sm_70", "FP8 blocks of 128")


def test_nothing_chosen_is_the_reference_in_every_op() -> None:
    assert str(Selection()) == " ".join(f"{op}:reference" for op in OPS)
    assert str(choose("reference", [FAST, PROVEN], ALL)) == str(Selection())


def test_what_is_not_proven_runs_only_where_it_is_asked_for() -> None:
    auto = choose("auto", [FAST, PROVEN], ALL)
    assert auto.chosen == (PROVEN,)
    assert "--kernels cuda" in str(auto.refused[0])
    asked = choose("cuda", [FAST, PROVEN], ALL)
    assert asked.variant("linear", "step") == "cuda"
    assert asked.variant("linear", "prefill") == "reference"
    assert "linear:reference/cuda" in str(asked)


def test_what_is_proven_elsewhere_is_not_proven_here() -> None:
    newer = ("CUDA", "sm_90")
    assert choose("auto", [PROVEN], newer).chosen == ()
    (refusal,) = choose("auto", [PROVEN], newer).refused
    assert refusal.reason == "proven on sm_70 only (--kernels cuda takes it all the same)"
    assert choose("cuda", [PROVEN], newer).chosen == (PROVEN,)


def test_a_refusal_names_what_is_required_supported_and_missing() -> None:
    (refusal,) = choose("cuda", [FAST], ["CUDA", "sm_70"]).refused
    assert str(refusal) == (
        "linear (step) by cuda: required: CUDA, sm_70, FP8 blocks of 128; "
        "supported: CUDA, sm_70; missing: FP8 blocks of 128"
    )


def test_the_first_variant_that_fits_is_chosen() -> None:
    other = Variant("linear", "step", "plain", ())
    better = Variant("linear", "step", "plain", ("sm_90",))
    assert choose("plain", [better, other], ALL).chosen == (other,)
    assert choose("plain", [other, FAST], ALL).chosen == (other,)


def trial(kernel, variant: Variant = FAST) -> Trial:
    return Trial(
        variant, "4 rows of 8", lambda: torch.randn(4, 8), kernel, lambda x: x * 2, tolerance=1e-6
    )


def fall_over(x):
    raise RuntimeError("illegal instruction")


def verdict(kernel) -> str:
    found = check(Selection((FAST, PROVEN)), [trial(kernel), trial(lambda x: x * 2, PROVEN)])
    assert PROVEN in found.chosen
    return "; ".join(map(str, found.refused))


def test_a_kernel_that_is_right_stays() -> None:
    found = check(Selection((FAST,)), [trial(lambda x: x * 2)])
    assert found == Selection((FAST,))


def test_a_bad_kernel_is_refused_by_name_and_its_op_goes_back() -> None:
    for kernel, reason in (
        (lambda x: x * 2.001, "its relative error is 5.0e-04, above 1.0e-06"),
        (lambda x: x * float("nan"), "relative error is nan"),
        (lambda x: x[:, :4], "it gave torch.float32 [4, 4]"),
        (fall_over, "it failed (RuntimeError: illegal instruction)"),
        (lambda x: x * 2 * (1 + 2**-23 * (len(x) > 1)), "row 0 alone has other bits"),
    ):
        text = verdict(kernel)
        assert text.startswith("linear (step) by cuda: 4 rows of 8: "), text
        assert reason in text


def test_the_canary_tries_only_what_was_chosen() -> None:
    assert check(Selection(), [trial(fall_over)]) == Selection()
