// Places of a transposed convolution's results on the host.
#include "emulator.h"
#include "intrinsics.h"

#include "sm90/phase_places.h"
// here come the architectures and Kernels, a tuple of instances

using namespace onnxbolt;

namespace {

template <class Places>
void Put(const ConvArguments& conv, const Places& places, long long* place, int* channel) {
  for (int row = 0; row < conv.n * conv.p * conv.q; ++row) {
    const sm90::FirstPixel first = sm90::PixelOfRow(places, row);
    for (int column = 0; column < conv.k; ++column) {
      const sm90::PhaseOfColumn phase(places, column);
      *place++ = sm90::PlaceOf(places, first, phase);
      *channel++ = phase.channel;
    }
  }
}

template <class Places>
void Put(const ConvArguments& conv, const Places& places, int width, int* first) {
  for (int column = 0; column < conv.k; column += width) {
    const sm90::FirstTap tap(places, column, column + width);
    *first++ = tap.r, *first++ = tap.s;
  }
}

}  // namespace

// Puts the place of each row and column of the product into `place`, and its channel into
// `channel`. `extents`: n, p, q, k, groups, then the fields of PhasedPixels but its zeros.
extern "C" void host_places(const int* extents, long long* place, int* channel) {
  ConvArguments conv{};
  for (int* to : {&conv.n, &conv.p, &conv.q, &conv.k, &conv.groups, &conv.pixels.h, &conv.pixels.w,
                  &conv.pixels.top, &conv.pixels.left, &conv.pixels.height, &conv.pixels.width,
                  &conv.pixels.d})
    *to = *extents++;
  if (conv.pixels.d > 1) return Put(conv, sm90::SlicedPlaces(conv), place, channel);
  Put(conv, sm90::PhasedPlaces(conv), place, channel);
}

// Puts the first taps that the `width` columns from each multiple of `width` on meet into `first`.
// `extents`: r, s, k, groups, phases and zeros along height and width, phases along the depth.
extern "C" void host_first_taps(const int* extents, int width, int* first) {
  ConvArguments conv{};
  conv.p = conv.q = 1;
  for (int* to : {&conv.r, &conv.s, &conv.k, &conv.groups, &conv.pixels.h, &conv.pixels.w,
                  &conv.pixels.zeros_h, &conv.pixels.zeros_w, &conv.pixels.d})
    *to = *extents++;
  if (conv.pixels.d > 1) return Put(conv, sm90::SlicedPlaces(conv), width, first);
  Put(conv, sm90::PhasedPlaces(conv), width, first);
}
