"""The trained models: where they are from, how their users prepare an input, and what they take
from the outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.trained import boxes, images, speech, text
from tests.trained.agreement import Answer, Array
from tests.trained.images import Pixels

Network = Callable[[Mapping[str, Array]], Sequence[Array]]  # inputs by name: outputs in order
Networks = Mapping[str, Network]  # by role

MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # ImageNet's
DIGITS = "0123456789"
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"  # Chinese plates have neither I nor O
PROVINCES = "京沪津渝冀晋蒙辽吉黑苏浙皖闽赣鲁豫鄂湘粤桂琼川贵云藏陕甘青宁新"
LPRNET = f"{PROVINCES}{DIGITS}{LETTERS}IO"
PLATE_COLOR = (
    "京沪津渝冀晋蒙辽吉黑苏浙皖闽赣鲁豫鄂湘粤桂琼川贵云藏陕甘青宁新学警港澳挂使领民航危"
    f"{DIGITS}{LETTERS}险品"
)
COLOURS = ("black", "blue", "green", "white", "yellow")
TYPES = ("blue", "green", "yellow")
# PP-OCR's English dictionary, and the space that its users add
ENGLISH = "".join(chr(k) for k in (*range(48, 127), *range(33, 48), 32, 32))


@dataclass(frozen=True)
class Case:
    """Networks that work together (their files by role), inputs (files), and the function that
    makes an answer of both."""

    name: str
    networks: Mapping[str, str]
    inputs: Sequence[str]
    answer: Callable[[Networks, bytes], Answer]


def faces(networks: Networks, data: bytes) -> Answer:
    image = images.decoded(data)
    small = images.tensor(images.resized(image, 320, 240), 127.0, 128.0)
    scores, corners = networks["detector"]({"input": small})
    height, width = image.shape[:2]
    return Answer(boxes=boxes.faces(scores[0], corners[0], width, height))


def fastest_det(networks: Networks, data: bytes) -> Answer:
    image = images.decoded(data)
    small = images.tensor(images.resized(image, 352, 352), 0.0, 255.0, blue_first=True)
    (planes,) = networks["detector"]({"input.1": small})
    height, width = image.shape[:2]
    return Answer(boxes=boxes.of_fastest_det(planes[0], width, height))


def yolox(networks: Networks, data: bytes) -> Answer:
    square, scale, _ = images.letterboxed(images.decoded(data), 416, 114, centred=False)
    (cells,) = networks["detector"]({"images": images.tensor(square, blue_first=True)})
    return Answer(boxes=boxes.of_yolox(cells[0], 416, scale))


def plate_boxes(networks: Networks, data: bytes) -> Answer:
    square, scale, place = images.letterboxed(images.decoded(data), 320, 0, centred=True)
    (rows,) = networks["detector"]({"input": images.tensor(square, 0.0, 255.0)})[:1]
    return Answer(boxes=boxes.plates(rows[0], scale, place))


def plate_type(networks: Networks, data: bytes) -> Answer:
    small = images.tensor(images.resized(images.decoded(data), 96, 96), 0.0, 255.0, blue_first=True)
    (scores,) = networks["classifier"]({"data": small})
    return Answer({"label": [TYPES[int(scores.argmax())]]})


def lprnet(networks: Networks, data: bytes) -> Answer:
    small = images.resized(images.decoded(data), 94, 24)
    (scores,) = networks["recognizer"](
        {"input.1": images.tensor(small, 127.5, 128.0, blue_first=True)}
    )
    return Answer({"text": [text.decoded(scores.argmax(axis=0), LPRNET, len(LPRNET))]})


def plate_text_and_colour(networks: Networks, data: bytes) -> Answer:
    small = images.resized(images.decoded(data), 168, 48)
    mean, deviation = 0.588 * 255, 0.193 * 255
    scores, colours = networks["recognizer"](
        {"input": images.tensor(small, mean, deviation, blue_first=True)}
    )
    return Answer(
        {
            "text": [text.decoded(scores[0].argmax(axis=-1), PLATE_COLOR, 0)],
            "label": [COLOURS[int(colours.argmax())]],
        }
    )


def segments(networks: Networks, data: bytes) -> Answer:
    small = images.resized(images.decoded(data), 512, 512)
    (planes,) = networks["segmenter"]({"x.1": images.tensor(small, MEAN, DEVIATION)})
    return Answer(masks=[plane > 0.5 for plane in planes[0]])


def with_shorter_side(image: Pixels, least: int) -> Pixels:
    """The image with a shorter side of at least this, and sides in multiples of 32."""
    return _in_steps(image, max(1.0, least / min(image.shape[:2])))


def with_longer_side(image: Pixels, side: int) -> Pixels:
    """The image with a longer side of about this, and sides in multiples of 32."""
    return _in_steps(image, side / max(image.shape[:2]))


def _in_steps(image: Pixels, scale: float) -> Pixels:
    height, width = (max(round(extent * scale / 32), 1) * 32 for extent in image.shape[:2])
    return images.resized(image, width, height)


def text_mask(networks: Networks, data: bytes, longer_side: int) -> Answer:
    image = with_longer_side(images.decoded(data), longer_side)
    (map_,) = networks["detector"]({"x": images.tensor(image, MEAN, DEVIATION, blue_first=True)})
    return Answer(masks=[map_[0, 0] > 0.3])


def reading(networks: Networks, data: bytes) -> Answer:
    """Lines are found, turned by half where they stand on their heads, and read."""
    image = images.decoded(data)
    scaled = with_shorter_side(image, 736)
    (map_,) = networks["detector"]({"x": images.tensor(scaled, MEAN, DEVIATION, blue_first=True)})
    scale = (scaled.shape[1] / image.shape[1], scaled.shape[0] / image.shape[0])
    lines = text.text_boxes(map_[0, 0], scale, ratio=2.0)
    texts = [_read(networks, image, line.corners) for line in lines]
    return Answer({"text": texts}, masks=[map_[0, 0] > 0.3])


def _read(networks: Networks, image: Pixels, corners: Array) -> str:
    corners, width, height = text.upright_size(corners)
    columns = max(round(32 * width / height), 8)
    line = images.cropped(image, corners, columns, 32)
    wide = np.zeros((48, 192, 3), np.uint8) + np.uint8(127)
    fitting = min(max(round(48 * width / height), 1), 192)
    wide[:, :fitting] = images.cropped(image, corners, fitting, 48)
    (turned,) = networks["classifier"]({"x": images.tensor(wide, 127.5, 127.5, blue_first=True)})
    line = line[::-1, ::-1] if turned[0, 1] > 0.9 else line
    (scores,) = networks["recognizer"]({"x": images.tensor(line, 127.5, 127.5, blue_first=True)})
    return text.decoded(scores[0].argmax(axis=-1), ENGLISH, 0)


def speech_flags(networks: Networks, data: bytes) -> Answer:
    def step(window: Array, state: Array) -> tuple[float, Array]:
        probability, state = networks["detector"](
            {"input": window, "state": state, "sr": np.array(speech.RATE, np.int64)}
        )
        return float(probability[0, 0]), state

    recording = speech.samples(data)
    found = speech.probabilities(recording, step)
    return Answer(
        {
            "speech flag": [probability >= speech.START for probability in found],
            "speech segment": speech.segments(found, len(recording)),
        }
    )


def _files(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names.split())


_FACES = "Linzaer/Ultra-Light-Fast-Generic-Face-Detector-1MB"
_FACE_IMAGES = _files(f"{_FACES}/imgs", "1.jpg 2.jpg 3.jpg 5.jpg 10.jpg 13.jpg")
_FASTEST_DET = "dog-qiuqiu/FastestDet"
_OBJECTS = _files(f"{_FASTEST_DET}/data", "0.jpg 1.jpg 2.jpg 3.jpg 4.jpg")
_RAPID = "BobLd/RapidOcrNet"
_TEXTS = _files(
    f"{_RAPID}/RapidOcrNet.Tests/images",
    "1997.png 254.jpg img_10.jpg img_11.jpg img_195.jpg rotated.PNG rotated2.PNG",
)
_PLATES = "szad670401/HyperLPR"
_PLATE_CROPS = _files(
    f"{_PLATES}/resource/images",
    "rec_crop/_0_津B6H920.jpg rec_crop/_1_皖KD01833.jpg rec_crop/_6_蒙B023H6.jpg"
    " rec_crop/_8_冀D5L690.jpg align.jpg align/1.jpg align/3.jpg align/5.jpg",
)
_SKIN = "Kazuhito00/Skin-Clothes-Hair-Segmentation-using-SMP"
_OCR = "ssYanhuo/ocrweb"
_SILERO = "snakers4/silero-vad"

CASES = (
    Case(
        "Ultra-Light face detection, RFB-320",
        {"detector": f"{_FACES}/models/onnx/version-RFB-320.onnx"},
        _FACE_IMAGES,
        faces,
    ),
    Case(
        "Ultra-Light face detection, slim-320",
        {"detector": f"{_FACES}/models/onnx/version-slim-320.onnx"},
        _FACE_IMAGES,
        faces,
    ),
    Case(
        "FastestDet",
        {"detector": f"{_FASTEST_DET}/example/onnx-runtime/FastestDet.onnx"},
        _OBJECTS,
        fastest_det,
    ),
    Case(
        "YOLOX-Nano",
        {"detector": "hamacom2004jp/iinfer/models/yolox_nano.onnx"},
        ("Megvii-BaseDetection/YOLOX/assets/dog.jpg", *_OBJECTS),
        yolox,
    ),
    Case(
        "PP-OCRv3 text detector",
        {"detector": f"{_RAPID}/RapidOcrNet/models/en_PP-OCRv3_det_infer.onnx"},
        _TEXTS,
        functools.partial(text_mask, longer_side=1024),
    ),
    Case(
        "PP-OCRv6 tiny text detector",
        {"detector": "osky1993/pp_ocr4j/models/ppocr-v6/tiny/det.onnx"},
        ("osky1993/pp_ocr4j/test_images/1.png", *_TEXTS),
        functools.partial(text_mask, longer_side=960),
    ),
    Case(
        "PP-OCR 2.0 mobile: text detector, line classifier, English recognizer",
        {
            "detector": f"{_OCR}/resources/models/ch_ppocr_mobile_v2.0_det_infer.onnx",
            "classifier": f"{_OCR}/resources/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "recognizer": f"{_OCR}/resources/models/en_number_mobile_v2.0_rec_infer.onnx",
        },
        _TEXTS,
        reading,
    ),
    Case(
        "PAN segmentation of skin, clothes and hair",
        {
            "segmenter": f"{_SKIN}/02.model/_old/PAN(timm-mobilenetv3_small_100)_452_1.02M_0.8028"
            "/best_model.onnx"
        },
        (f"{_SKIN}/01.dataset/image/000335.png", f"{_SKIN}/XX.image/sample1.webp"),
        segments,
    ),
    Case(
        "LPRNet plate recognition",
        {"recognizer": "hpc203/license-plate-detect-recoginition-opencv/Final_LPRNet_model.onnx"},
        _PLATE_CROPS,
        lprnet,
    ),
    Case(
        "plate recognition with colour",
        {"recognizer": "zhang-jiaqi-1207/plate-rec-color/weights/plate_rec_color.onnx"},
        _PLATE_CROPS,
        plate_text_and_colour,
    ),
    Case(
        "HyperLPR plate detector",
        {"detector": f"{_PLATES}/resource/models/onnx/y5fu_320x_sim.onnx"},
        _files(f"{_PLATES}/resource/images", "1.jpg pre.jpg test_img.jpg"),
        plate_boxes,
    ),
    Case(
        "HyperLPR plate type",
        {"classifier": f"{_PLATES}/resource/models/onnx/litemodel_cls_96x_r1.onnx"},
        _PLATE_CROPS,
        plate_type,
    ),
    Case(
        "Silero VAD, opset 16",
        {"detector": f"{_SILERO}/src/silero_vad/data/silero_vad.onnx"},
        (f"{_SILERO}/tests/data/test.wav",),
        speech_flags,
    ),
    Case(
        "Silero VAD, opset 18",
        {"detector": f"{_SILERO}/src/silero_vad/data/silero_vad_op18_ifless.onnx"},
        (f"{_SILERO}/tests/data/test.wav",),
        speech_flags,
    ),
)
