import io
import struct
import zlib

import made
import numpy as np
import pillow_heif
import pytest
from PIL import Image, ImageCms, ImageOps

from backend.errors import MediaRefused
from backend.media import images
from backend.media.prepare import prepare_request
from backend.media.sandbox import Role
from backend.types import GenerationRequest, Geometry


def save(path, image: Image.Image, **options):
    image.save(path, **options)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_stands_upright(tmp_path, see, orientation):
    pixels = Image.fromarray(made.picture_and_pattern(640, 360))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / "photo.jpg", pixels, quality=95, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))
    seen = see(path)
    assert np.array_equal(seen.image, expected)
    assert (seen.report.prepared_height, seen.report.prepared_width) == expected.shape[:2]
    assert (seen.report.width, seen.report.height) == (expected.shape[1], expected.shape[0])
    assert bool(seen.report.actions) == (orientation != 1)


def orientation_tag(kind: int, value: bytes) -> bytes:
    """EXIF with an orientation of a TIFF type: 2 text, 3 short, 4 long, 5 rational, 11 float."""
    head = b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x01\x00\x12\x01" + struct.pack("<HI", kind, 1)
    inline = value if len(value) <= 4 else struct.pack("<I", 26)
    return head + inline.ljust(4, b"\x00") + bytes(4) + (value if len(value) > 4 else b"")


UNDEFINED = [(3, struct.pack("<H", value)) for value in (0, 9, 10, 16, 255, 256, 257, 1000, 32768, 65535)]
UNDEFINED += [(4, struct.pack("<I", 2**31)), (5, struct.pack("<2I", 13, 2)), (5, struct.pack("<2I", 6, 0))]
UNDEFINED += [(11, struct.pack("<f", 6.5)), (11, struct.pack("<f", np.nan)), (2, b"6"), (2, b"\xff")]


@pytest.mark.parametrize("tag", UNDEFINED)
def test_an_orientation_that_exif_does_not_define_turns_nothing(tmp_path, see, tag):
    picture = Image.fromarray(made.picture_and_pattern(640, 360))
    seen = see(save(tmp_path / "odd.jpg", picture, exif=orientation_tag(*tag)), role=Role.FIRST_FRAME)
    assert seen.image.shape == (360, 640, 3)
    assert (seen.report.width, seen.report.height) == (640, 360)
    assert (seen.report.prepared_width, seen.report.prepared_height) == (640, 360)
    assert seen.report.actions == ()
    turned = see(save(tmp_path / "six.jpg", picture, exif=orientation_tag(3, b"\x06\x00")))
    assert turned.image.shape == (640, 360, 3)  # the tag written here is one that is read


def test_every_orientation_agrees_in_report_and_pixels():
    # the whole range of the tag's 16 bits, through the function that report, canvas and pixels all ask
    image = Image.new("RGB", (4, 2))
    image.getexif()
    for value in range(65536):
        image._exif[0x0112] = value
        turned = images._orientation(image)
        expected = ImageOps.exif_transpose(image).size if value < 16 else (4, 2)
        assert turned == (value if 1 <= value <= 8 else 1)
        assert (turned >= 5) == (expected == (2, 4))


def test_a_keyframes_canvas_ignores_an_undefined_orientation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 9
    path = save(tmp_path / "odd.jpg", Image.fromarray(made.picture_and_pattern(640, 360)), exif=exif)
    small = Geometry(canvas_short_edge=192, canvas_max_pixels=192 * 336)
    media = prepare_request(GenerationRequest(prompt="x", first_frame=path), small, tmp_path / "job")
    assert Image.open(media.first_frame).size == (352, 192)  # 16:9 at 192 px, to 32 px


def test_d01_orientation_6_puts_left_on_top(tmp_path, see):
    pixels = np.concatenate([made.solid((255, 0, 0), 320, 360), made.solid((0, 0, 255), 320, 360)], axis=1)
    exif = Image.Exif()
    exif[0x0112] = 6
    seen = see(save(tmp_path / "d01.jpg", Image.fromarray(pixels), quality=95, exif=exif))
    assert seen.image.shape == (640, 360, 3)
    assert np.abs(seen.image[:300].astype(int) - (254, 0, 0)).max() <= 4
    assert np.abs(seen.image[340:].astype(int) - (0, 0, 254)).max() <= 4


def test_d02_16_bit_ramp_keeps_its_levels(tmp_path, see):
    ramp = np.broadcast_to(np.arange(256, dtype=np.uint16) * 257, (256, 256))
    seen = see(save(tmp_path / "d02.png", Image.fromarray(np.ascontiguousarray(ramp))))
    assert len(np.unique(seen.image)) >= 250
    assert (seen.image == 255).all(axis=-1).mean() < 0.02
    assert np.array_equal(seen.image[0, :, 0], np.arange(256))  # 257 k of 65535 is k of 255
    assert seen.report.actions == ("scaled from 16 to 8 bits",)


def test_16_bit_rgb_is_scaled_not_clipped(tmp_path, see):
    # Pillow cannot write 16-bit RGB: a PNG by hand, after its specification
    width = height = 256
    row = b"\x00" + b"".join(struct.pack(">3H", 257 * x, 257 * (255 - x), 257 * 64) for x in range(width))
    chunks = [(b"IHDR", struct.pack(">2I5B", width, height, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(row * height))]
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in [*chunks, (b"IEND", b"")]:
        data += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    path = tmp_path / "deep.png"
    path.write_bytes(data)
    seen = see(path)
    expected = np.stack([np.arange(256), 255 - np.arange(256), np.full(256, 64)], axis=-1)
    assert np.array_equal(seen.image[5], expected)
    assert seen.report.actions == ("scaled from 16 to 8 bits",)


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(tmp_path, see, mode):
    source = Image.fromarray(made.solid((128, 128, 128), 300, 300))
    if mode == "1":
        source = Image.new("L", (300, 300), 255)
    ending = "jpg" if mode in ("CMYK", "YCbCr") else "png"
    options = {"quality": 95} if ending == "jpg" else {}
    converted = source.quantize(4) if mode == "P" else source.convert(mode)
    seen = see(save(tmp_path / f"a.{ending}", converted, **options))
    expected = 255 if mode == "1" else 128
    assert seen.image.shape == (300, 300, 3) and np.abs(seen.image.astype(int) - expected).max() <= 3


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L"])
def test_transparency_lies_over_neutral_grey(tmp_path, see, mode):
    alpha = Image.fromarray(np.repeat(np.array([[0, 255]], np.uint8).repeat(150, axis=1), 300, axis=0))
    image = Image.new("RGB", (300, 300), (250, 250, 250))
    options = {}
    if mode == "P":
        image = Image.fromarray((np.asarray(alpha) // 255).astype(np.uint8), "P")
        image.putpalette([9, 9, 9, 250, 250, 250])
        options["transparency"] = 0
    elif mode == "L":
        image = Image.fromarray(np.where(np.asarray(alpha) > 0, 250, 9).astype(np.uint8))
        options["transparency"] = 9
    else:
        image.putalpha(alpha)
        image = image.convert(mode)
    seen = see(save(tmp_path / "cutout.png", image, **options))
    assert np.array_equal(seen.image[10, 10], (128, 128, 128))
    assert np.array_equal(seen.image[10, 290], (250, 250, 250))
    assert any("transparent" in action for action in seen.report.actions)


def test_a_colour_profile_is_applied_and_srgb_left_alone(tmp_path, see):
    pixels = np.random.default_rng(1).integers(0, 255, (260, 260, 3), dtype=np.uint8)
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    path = save(tmp_path / "srgb.png", Image.fromarray(pixels), icc_profile=srgb)
    assert np.array_equal(see(path).image, pixels)
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    seen = see(save(tmp_path / "odd.png", Image.fromarray(pixels), icc_profile=lab))
    assert seen.report.warnings == ("its colour profile does not fit and was ignored",)
    # a profile with red and blue primaries exchanged: what it calls red is shown blue
    swapped = bytearray(srgb)
    red, blue = swapped.index(b"rXYZ"), swapped.index(b"bXYZ")
    swapped[red : red + 4], swapped[blue : blue + 4] = b"bXYZ", b"rXYZ"
    seen = see(
        save(tmp_path / "swap.png", Image.fromarray(made.solid((250, 0, 0), 260, 260)), icc_profile=bytes(swapped))
    )
    assert seen.image[0, 0, 2] > 240 and seen.image[0, 0, 0] < 10


def test_cmyk_goes_through_its_own_profile(tmp_path, see):
    profile = made.cmyk_profile()
    inks = {(255, 0, 0, 0): (60, 180, 200), (0, 255, 0, 0): (210, 60, 140), (0, 0, 0, 0): (255, 255, 255)}
    for number, (ink, shown) in enumerate(inks.items()):
        path = save(
            tmp_path / f"print-{number}.jpg", Image.new("CMYK", (300, 300), ink), icc_profile=profile, quality=95
        )
        seen = see(path)
        assert np.abs(seen.image[150, 150].astype(int) - shown).max() <= 6, (ink, seen.image[150, 150])
        assert "converted to sRGB by its colour profile" in seen.report.actions
    plain = see(save(tmp_path / "plain.jpg", Image.new("CMYK", (300, 300), (255, 0, 0, 0)), quality=95))
    assert "converted from CMYK without a profile" in plain.report.actions


@pytest.mark.parametrize("ending", ["gif", "webp", "png"])
def test_the_first_frame_of_an_animation_with_a_notice(tmp_path, see, ending):
    frames = [Image.new("RGB", (300, 300), colour) for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200))]
    path = tmp_path / f"moving.{ending}"
    options = {"lossless": True} if ending == "webp" else {}
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100, **options)
    seen = see(path)
    assert np.array_equal(seen.image[0, 0], (200, 0, 0))
    assert any("first of 3 frames" in action for action in seen.report.actions)


def test_heic_is_read_and_turned_once(tmp_path, see):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "phone.heic"
    pillow_heif.from_pillow(Image.fromarray(made.picture_and_pattern(640, 360))).save(
        path, quality=95, exif=exif.tobytes()
    )
    seen = see(path)
    assert seen.report.container == "HEIC"
    pillow_heif.register_heif_opener()
    with Image.open(path) as shown:
        assert seen.image.shape[1::-1] == shown.size


def test_content_decides_never_the_extension(tmp_path, see):
    path = tmp_path / "really.mp4"
    Image.new("RGB", (300, 300)).save(path, format="PNG")
    assert see(path).report.container == "PNG"


@pytest.mark.parametrize(
    ("size", "word"),
    [
        ((255, 400), "256 to 5760"),
        ((5761, 3000), "256 to 5760"),
        ((300, 760), "0.4 to 2.5"),
        ((1000, 390), "0.4 to 2.5"),
    ],
)
def test_reference_limits_name_rule_value_and_way_out(tmp_path, see, size, word):
    path = save(tmp_path / "x.png", Image.new("L", size))
    with pytest.raises(MediaRefused) as refused:
        see(path)
    text = str(refused.value)
    assert "x.png" in text and f"{size[0]}x{size[1]}" in text and word in text and refused.value.problem.way_out


@pytest.mark.parametrize("size", [(256, 640), (640, 256), (301, 257)])
def test_the_bounds_themselves_and_odd_sizes_are_fine(tmp_path, see, size):
    assert see(save(tmp_path / "x.png", Image.new("RGB", size))).image.shape[1::-1] == size


def test_too_many_bytes(tmp_path, see):
    path = tmp_path / "fat.png"
    Image.new("RGB", (300, 300)).save(path)
    with path.open("ab") as file:
        file.truncate(31 * 2**20)
    with pytest.raises(MediaRefused, match=r"31\.0 MiB.*at most 30 MiB"):
        see(path)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "gif"])
def test_a_picture_cut_in_half_is_refused(tmp_path, see, ending):
    noise = np.random.default_rng(2).integers(0, 255, (400, 400, 3), dtype=np.uint8)
    whole = io.BytesIO()
    Image.fromarray(noise).save(whole, format={"jpg": "JPEG"}.get(ending, ending.upper()))
    path = tmp_path / f"half.{ending}"
    path.write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    with pytest.raises(MediaRefused, match=r"half.*must be a complete picture"):
        see(path)


KEYFRAME_SIZES = [(1344, 768), (640, 360), (1000, 1000), (977, 1333), (2000, 501), (333, 1331)]


@pytest.mark.parametrize("size", KEYFRAME_SIZES)
@pytest.mark.parametrize("canvas", [(1344, 768), (768, 1344), (960, 544)])
def test_keyframes_equal_diffusers_resize_step(tmp_path, see, size, canvas):
    pixels = np.random.default_rng(3).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    path = save(tmp_path / "key.png", Image.fromarray(pixels))
    first, follower = diffusers_keyframes(Image.fromarray(pixels), canvas)
    options = {"role": Role.FIRST_FRAME, "width": canvas[0], "height": canvas[1]}
    assert np.array_equal(see(path, **options).image, first)
    assert np.array_equal(see(path, cover=True, **options).image, follower)


def diffusers_keyframes(image: Image.Image, canvas: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """`image` as first and as following keyframe, through diffusers' own block."""
    from types import SimpleNamespace

    from diffusers.configuration_utils import FrozenDict
    from diffusers.image_processor import VaeImageProcessor
    from diffusers.modular_pipelines.minimax_h3.before_encoder import MiniMaxH3ResizeStep
    from diffusers.modular_pipelines.modular_pipeline import PipelineState

    components = SimpleNamespace(
        image_processor=VaeImageProcessor(vae_scale_factor=16),
        config=FrozenDict({"canvas_short_edge": 768, "canvas_max_pixels": 768 * 1344}),
        canvas_multiple=32,
    )
    state = PipelineState()
    for name, value in {"image": image, "last_image": image, "width": canvas[0], "height": canvas[1]}.items():
        state.set(name, value)
    _, state = MiniMaxH3ResizeStep()(components, state)
    first, follower = state.get("keyframes")
    return np.asarray(first), np.asarray(follower)


def test_a_small_keyframe_is_fine_and_an_extreme_one_is_not(tmp_path, see):
    small = save(tmp_path / "s.png", Image.new("RGB", (64, 64)))
    assert see(small, role=Role.FIRST_FRAME).image.shape == (64, 64, 3)
    wide = save(tmp_path / "w.png", Image.new("RGB", (500, 100)))
    with pytest.raises(MediaRefused, match=r"500x100.*1:4 and 4:1.*crop it"):
        see(wide, role=Role.FIRST_FRAME)
