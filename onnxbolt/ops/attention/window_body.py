"""The order of rows of windows of images (graph/windows.py) in standard operators: its numbers are
the calling node's attribute `windows`."""

from __future__ import annotations

from dataclasses import dataclass

from onnxbolt.ops.body import REST, Body


@dataclass(frozen=True)
class _Axis:
    """Names of scalars: pixels and windows of an image along one axis, a window's pixels, and the
    pixels that come first in the last window."""

    pixels: str
    windows: str
    window: str
    shift: str

    def shifted(self, body: Body, op: str) -> str:
        """The indices 0, 1, .. plus ("Add") or minus ("Sub") the shift, over the edge."""
        indices = body("Range", [body.integer(0), self.pixels, body.integer(1)])
        return body("Mod", [body(op, [indices, self.shift]), self.pixels])


class WindowRows:
    """Nodes that bring rows of images into windows, and back."""

    def __init__(self, body: Body) -> None:
        numbers = body.given("windows")
        height, width, *window, shift_y, shift_x = (
            body("Gather", [numbers, body.integer(i)]) for i in range(6)
        )
        self._body = body
        self._y, self._x = (
            _Axis(pixels, body("Div", [pixels, part]), part, shift)
            for pixels, part, shift in zip((height, width), window, (shift_y, shift_x), strict=True)
        )
        self._pixels = body("Mul", [height, width])
        self._positions = body("Mul", window)

    def divided(self, image: str) -> str:
        """[batch x windows, positions, row] of [batch, height, width, row] or [batch, height x
        width, row]."""
        body = self._body
        pixels = self._vector(self._pixels)
        row = body("Div", [body.size(image, 1, REST), pixels])
        rows = body.reshape(image, 0, pixels, row)
        windows = body("Gather", [rows, self._rows()], axis=1)  # [batch, windows, positions, row]
        count = body("Mul", [body.size(windows, 0), body.size(windows, 1)])
        return body.reshape(windows, count, self._vector(self._positions), row)

    def united(self, windows: str, image: str) -> str:
        """The inverse, in the form that `image` has."""
        body = self._body
        columns = body("Transpose", [windows], perm=[2, 0, 1])
        batch, pixels = body.size(image, 0), self._vector(self._pixels)
        columns = body.reshape(columns, 0, batch, pixels)
        columns = body("Gather", [columns, self._back()], axis=2)
        rows = body("Transpose", [columns], perm=[1, 2, 0])
        size = body("Slice", [body("Shape", [image]), body.ints(0), body.ints(-1)])
        return body.reshape(rows, size, body.size(windows, -1))

    def _rows(self) -> str:
        """The pixel at each position of each window, [windows, positions]."""
        body, y, x = self._body, self._y, self._x
        lines = body("Mul", [y.shifted(body, "Add"), x.pixels])
        pixels = body("Add", [body("Unsqueeze", [lines, body.ints(1)]), x.shifted(body, "Add")])
        apart = body("Reshape", [pixels, self._vector(y.windows, y.window, x.windows, x.window)])
        windows = body("Transpose", [apart], perm=[0, 2, 1, 3])
        return body("Reshape", [windows, self._vector(-1, self._positions)])

    def _back(self) -> str:
        """The row, window * positions + position, of each pixel."""
        body, y, x = self._body, self._y, self._x
        rows = body("Range", [body.integer(0), self._pixels, body.integer(1)])
        apart = body("Reshape", [rows, self._vector(y.windows, x.windows, y.window, x.window)])
        image = body("Transpose", [apart], perm=[0, 2, 1, 3])
        image = body("Reshape", [image, self._vector(y.pixels, x.pixels)])
        image = body("Gather", [image, y.shifted(body, "Sub")], axis=0)
        image = body("Gather", [image, x.shifted(body, "Sub")], axis=1)
        return body("Reshape", [image, body.ints(-1)])

    def _vector(self, *numbers: str | int) -> str:
        """Numbers, and names of scalars, as a vector."""
        body = self._body
        parts = [
            body.ints(n) if isinstance(n, int) else body("Unsqueeze", [n, body.ints(0)])
            for n in numbers
        ]
        return body("Concat", parts, axis=0)
