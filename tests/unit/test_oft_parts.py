"""The parts of OpenVLA-OFT by themselves: images, prompts, heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import nn

from manyarms.errors import ConfigError
from manyarms.policies.openvla_oft.heads import L1Head, TokenHead
from manyarms.policies.openvla_oft.model import text_ids
from manyarms.policies.openvla_oft.preprocessing import Images, Prompts, crop, lanczos
from manyarms.policies.transforms import CenterCrop
from oft import with_tokenizer

CPU = torch.device("cpu")
BINS = 256


def test_images_are_resized_as_pillow_does_with_lanczos() -> None:
    image = np.random.default_rng(0).integers(80, 176, (256, 192, 3), np.uint8)
    theirs = np.asarray(Image.fromarray(image).resize((224, 224), Image.Resampling.LANCZOS), np.float64)
    planes = image.transpose(2, 0, 1).astype(np.float64)
    ours = (lanczos(256, 224) @ planes @ lanczos(192, 224).T).transpose(1, 2, 0)
    # Pillow rounds, and cuts to bytes, between its two passes.
    assert np.abs(ours.round().clip(0, 255) - theirs).max() <= 1


def test_the_middle_of_images_is_kept_and_stretched() -> None:
    rng = np.random.default_rng(1)
    images = rng.random((2, 32, 32, 3)).astype(np.float32)
    ours = crop(32, 32, 0.9) @ images.transpose(0, 3, 1, 2) @ crop(32, 32, 0.9).T
    np.testing.assert_allclose(ours.transpose(0, 2, 3, 1), CenterCrop(0.9).apply(images), atol=1e-5)
    np.testing.assert_allclose(crop(32, 32, 1.0), np.eye(32), atol=1e-12)
    lone = np.zeros((1, 224, 224, 3), np.uint8)
    lone[0, 2, 112] = 255
    assert Images(224, 1.0)([lone], CPU).amax() > 1.0
    assert Images(224, 0.9)([lone], CPU).amax() < 0.0, "the edge is cut away"


def test_cropped_pixels_become_bytes_as_in_tensorflow() -> None:
    image = np.random.default_rng(3).integers(0, 256, (224, 224, 3), np.uint8)
    stretched = crop(224, 224, 0.9) @ image.transpose(2, 0, 1).astype(np.float64) @ crop(224, 224, 0.9).T
    wanted = np.floor(stretched / 255.0 * 255.5)
    found = ((Images(224, 0.9)([image[None]], CPU)[0, 3:] * 0.5 + 0.5) * 255.0).numpy()
    assert (np.abs(found - wanted) < 0.01).mean() > 0.999, "but for those on the edge between two bytes"


def test_both_transformers_get_their_own_scale_and_cameras_follow_each_other() -> None:
    white, black = np.full((1, 224, 224, 3), 255, np.uint8), np.zeros((1, 224, 224, 3), np.uint8)
    pixels = Images(224, 0.9)([white, black], CPU)
    assert pixels.shape == (1, 12, 224, 224)
    channels = pixels[0].mean((1, 2)).tolist()
    imagenet = [(1.0 - 0.485) / 0.229, (1.0 - 0.456) / 0.224, (1.0 - 0.406) / 0.225]
    assert channels[:6] == pytest.approx([*imagenet, 1.0, 1.0, 1.0], rel=1e-5)
    assert channels[9:] == pytest.approx([-1.0] * 3, rel=1e-5)


def test_images_can_be_turned_upside_down_without_swapping_channels() -> None:
    image = np.random.default_rng(2).integers(0, 256, (1, 224, 224, 3), np.uint8)
    turned = Images(224, 1.0, upside_down=True)([image], CPU)
    np.testing.assert_array_equal(turned, Images(224, 1.0)([image[:, ::-1, ::-1]], CPU))


def test_a_prompt_is_the_sentence_of_training_between_bos_and_the_empty_token(tmp_path: Path) -> None:
    prompts = Prompts(with_tokenizer(tmp_path), bos=1, vocabulary=32064)
    ids = prompts("Open the Drawer")
    letters = {i: token for token, i in Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab().items()}
    text = "".join(letters[i] for i in ids[1:-1]).replace("Ġ", " ").replace("Ċ", "\n")
    assert text == "In: What action should the robot take to open the drawer?\nOut:"
    assert (ids[0], ids[-1]) == (1, 29871)
    with pytest.raises(ConfigError, match="another model's tokenizer"):
        Prompts(tmp_path, bos=1, vocabulary=200)("open")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no tokenizer"):
        Prompts(tmp_path, bos=1, vocabulary=32064)


def test_rows_are_laid_out_from_the_left_whatever_their_length() -> None:
    ids, lengths = text_ids([[1, 5, 9], [1, 9]], slots=2, longest=4)
    assert ids.tolist() == [[1, 5, 9, -1, -1, 2, -1], [1, 9, -1, -1, 2, -1, -1]]
    assert lengths.tolist() == [3, 2]


def test_the_l1_head_is_a_laplace_distribution_around_the_regression() -> None:
    torch.manual_seed(0)
    head = L1Head(6, 2, 3, 8, log_scale=-1.0)
    nn.init.normal_(head.log_scale.weight, 0.0, 0.1)
    features, actions = torch.randn(5, 6, 6), torch.randn(5, 2, 3)
    states = features.reshape(5, 2, 18)
    scale = head.log_scale(head.model.layer_norm1(states)).exp()
    known = torch.distributions.Laplace(head.model(states), scale)
    log_probs, entropy = head.evaluate(features, actions)
    torch.testing.assert_close(log_probs, known.log_prob(actions))
    torch.testing.assert_close(entropy, known.entropy())
    uniform = torch.rand(5, 2, 3)
    drawn, said = head.sample(features, uniform)
    torch.testing.assert_close(drawn, known.icdf(uniform))
    torch.testing.assert_close(said, known.log_prob(drawn))
    torch.testing.assert_close(head.sample(features, None)[0], head.model(states))


def token_head(temperature: float = 1.6) -> tuple[TokenHead, nn.Linear]:
    torch.manual_seed(0)
    output = nn.Linear(4, 300, bias=False)
    nn.init.normal_(output.weight, 0.0, 2.0)
    return TokenHead(output, 20, BINS, (1, 2), temperature), output


def test_the_token_head_is_a_distribution_over_action_ids_only() -> None:
    head, output = token_head()
    features = torch.randn(3, 2, 4)
    logits = output(features)[..., 20 : 20 + BINS].view(3, 1, 2, BINS)
    known = torch.distributions.Categorical(logits=logits / 1.6)
    bins = torch.randint(0, BINS, (3, 1, 2))
    log_probs, entropy = head.evaluate(features, bins)
    torch.testing.assert_close(log_probs, known.log_prob(bins))
    torch.testing.assert_close(entropy, known.entropy())
    assert not list(head.parameters()), "its weights are the language model's"
    many = torch.rand(4000, 1, 2, BINS, generator=torch.Generator().manual_seed(0))
    drawn, _ = head.sample(features[:1].expand(4000, 2, 4), many)
    share = nn.functional.one_hot(drawn, BINS).float().mean(0)
    assert (share - known.probs[0]).abs().max() < 0.04


def test_without_noise_the_token_head_takes_the_best_of_the_whole_vocabulary() -> None:
    head, output = token_head()
    features = torch.randn(200, 2, 4)
    best = output(features).argmax(-1)
    bins, _ = head.sample(features, None)
    # As OpenVLA reads ids: vocabulary size - id - 1, cut to the 255 centres.
    edges = np.linspace(-1.0, 1.0, BINS)
    centres = (edges[:-1] + edges[1:]) / 2.0
    wanted = centres[np.clip(20 + BINS - best.numpy() - 1, 0, BINS - 2)]
    np.testing.assert_array_equal(head.decode(bins)[:, 0].numpy(), wanted)
    assert ((best < 20) | (best >= 20 + BINS)).any(), "or nothing had to be cut"


def test_a_token_below_the_bins_is_read_as_the_last_bin_that_has_a_centre() -> None:
    head, output = token_head()
    with torch.no_grad():
        output.weight[3] = 100.0  # far below the first id of actions, and always the best
    features = torch.rand(5, 2, 4) + 0.1
    bins, log_probs = head.sample(features, None)
    assert (bins == 1).all(), "ids count down: the second bin is the highest action, the first has no centre"
    np.testing.assert_array_equal(head.decode(bins).numpy(), float(head.centres[-1]))
    torch.testing.assert_close(log_probs, head.evaluate(features, bins)[0])


def test_bins_of_actions_are_those_of_openvlas_tokenizer() -> None:
    head, _ = token_head()
    actions = np.random.default_rng(0).uniform(-1.1, 1.1, (50, 1, 2))
    actions[0] = [[-1.0, 1.0]]
    digits = np.digitize(np.clip(actions, -1.0, 1.0), np.linspace(-1.0, 1.0, BINS))
    found = head.encode(torch.from_numpy(actions))
    np.testing.assert_array_equal(found.numpy(), BINS - digits)
    error = np.abs(head.decode(found).numpy() - actions.clip(-1.0, 1.0))
    assert error.max() <= 1.0 / (BINS - 1) + 1e-9


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="the kernel is for Hopper GPUs"
)
def test_swiglu_in_one_kernel_is_what_its_steps_give() -> None:
    from manyarms.policies.openvla_oft.swiglu import swiglu

    torch.manual_seed(0)
    x = torch.randn(603, 256, device="cuda").bfloat16()  # not a whole number of tiles, either way
    gate_up = torch.randn(2 * 328, 256, device="cuda").bfloat16()
    gate, up = (x.float() @ gate_up.float().T).chunk(2, -1)
    wanted = nn.functional.silu(gate) * up
    assert (swiglu(x, gate_up) - wanted).norm() / wanted.norm() < 4e-3
