"""The converter of TFLite: what it names, what it refuses, and in which words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stillbox.errors import UserError
from stillbox.exporting.tflite import conversion
from stillbox.exporting.tflite.conversion import SIGNATURE, convert

litert_converter = pytest.importorskip("litert_converter")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")

pytestmark = pytest.mark.xdist_group("tflite")

PIXELS = jax.ShapeDtypeStruct((1, 4, 4, 3), np.float32)


def test_the_signature_has_the_given_input_and_numbered_outputs():
    content = convert(lambda x: (x + 1, x.sum(axis=(1, 2)), x.max()), PIXELS, "pixels")
    runtime = interpreter.Interpreter(model_content=content)
    (name,) = signatures = runtime.get_signature_list()
    assert name == SIGNATURE
    assert signatures[name]["inputs"] == ["pixels"]
    assert sorted(signatures[name]["outputs"]) == ["output_0", "output_1", "output_2"]
    pixels = np.random.default_rng(0).normal(size=PIXELS.shape).astype(np.float32)
    outputs = runtime.get_signature_runner()(pixels=pixels)
    np.testing.assert_array_equal(outputs["output_0"], pixels + 1)
    np.testing.assert_allclose(outputs["output_1"], pixels.sum(axis=(1, 2)), rtol=1e-5)
    assert outputs["output_2"] == pixels.max()


def test_tensors_have_the_names_of_scopes():
    def function(x):
        with jax.named_scope("backbone"), jax.named_scope("conv_0"):
            return (jnp.exp(jnp.tanh(x)),)  # a result of the model has its own name

    runtime = interpreter.Interpreter(model_content=convert(function, PIXELS, "pixels"))
    names = [one["name"] for one in runtime.get_tensor_details()]
    assert any("backbone/conv_0/tanh" in name for name in names), names


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: (jnp.linalg.eigh(x[0, :3, :3, 0])[0],), "stablehlo.custom_call"),
        (lambda x: (jnp.fft.fft(x).real,), "Failed to export"),
    ],
    ids=["decomposition", "spectrum"],
)
def test_a_refusal_is_one_sentence(function, reason, capfd):
    with pytest.raises(UserError, match="TensorFlow Lite cannot hold this model") as refusal:
        convert(function, PIXELS, "pixels")
    assert reason in str(refusal.value)
    assert len(str(refusal.value).splitlines()) <= 2
    assert "--format" in refusal.value.fix
    capfd.readouterr()


def test_platforms_without_a_converter_are_told_so(monkeypatch):
    monkeypatch.setattr(conversion.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(conversion.platform, "system", lambda: "Linux")
    monkeypatch.setattr(conversion, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="no litert-converter for Linux on aarch64") as refusal:
        convert(lambda x: (x,), PIXELS, "pixels")
    assert "x86-64" in refusal.value.fix
