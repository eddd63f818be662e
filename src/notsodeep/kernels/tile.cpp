// One tile of a kernel matrix, sum_m T_m(x) left_m right_m': every cosine is read once, every entry written once.
// lookup.py builds and calls it, and says the same in plain torch.

#include <cmath>
#include <vector>

constexpr int BYTES = 64, ROWS = 4;

template <class R>
struct Of {
    typedef R Lanes __attribute__((vector_size(BYTES)));
    static constexpr int count = BYTES / sizeof(R);
};

template <class R>
struct Tile {
    const R *r, *left;     // (rows, columns); (rows, rank), or one coefficient per term
    const R *right;        // (rank, columns), or nothing
    R *out;                // (rows, columns)
    const int *ends;       // where the columns of each term end: 0, ...
    long rows, columns, right_stride;
    int terms, parity;     // 0: all orders, 1: odd, 2: even
    bool warped;
    R scale;
};

template <class R>
static inline typename Of<R>::Lanes arcsine(typename Of<R>::Lanes x) {
    // the rational function of fdlibm on [0, 1/2]; beyond, asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2))
    typedef typename Of<R>::Lanes V;
    const V zero = {};
    const auto negative = x < zero;
    const V a = negative ? -x : x;
    const auto far = a > zero + R(0.5);
    const V z = far ? (R(1) - a) * R(0.5) : a * a;
    V s;
    for (int l = 0; l < Of<R>::count; l++) s[l] = std::sqrt(z[l]);
    s = far ? s : a;
    const V p = z * (R(1.66666666666666657415e-01) + z * (R(-3.25565818622400915405e-01) + z * (R(2.01212532134862925881e-01)
        + z * (R(-4.00555345006794114027e-02) + z * (R(7.91534994289814532176e-04) + z * R(3.47933107596021167570e-05))))));
    const V q = R(1) + z * (R(-2.40339491173441421878e+00) + z * (R(2.02094576023350569471e+00)
        + z * (R(-6.88283971605453293030e-01) + z * R(7.70381505559019352791e-02))));
    const V small = s + s * (p / q);
    const V found = far ? R(1.57079632679489661923) - R(2) * small : small;
    return negative ? -found : found;
}

template <class R, int Q>
static inline void block(const Tile<R> &t, const typename Of<R>::Lanes *right, long i, long j, int lanes) {
    typedef typename Of<R>::Lanes V;
    V x2[Q], y2[Q], b1[Q], b2[Q];
    for (int q = 0; q < Q; q++) {
        V v = {};
        const R *r = t.r + (i + q) * t.columns + j;
        if (lanes == Of<R>::count) __builtin_memcpy(&v, r, BYTES);
        else for (int l = 0; l < lanes; l++) v[l] = r[l];
        x2[q] = (t.warped ? arcsine<R>(v) : v) * t.scale;
        y2[q] = t.parity ? x2[q] * x2[q] - R(2) : x2[q];
        b1[q] = b2[q] = V{};
    }
    const long rank = t.ends[t.terms];
    const R *left = t.left + i * rank;
    for (int m = t.terms - 1; m >= 0; m--) {
        V c[Q];
        for (int q = 0; q < Q; q++) c[q] = V{};
        if (t.right)
            for (long k = t.ends[m]; k < t.ends[m + 1]; k++)
                for (int q = 0; q < Q; q++) c[q] += left[q * rank + k] * right[k];
        else
            for (int q = 0; q < Q; q++) c[q] += t.left[m];
        for (int q = 0; q < Q; q++) {
            const V b0 = (c[q] - b2[q]) + y2[q] * b1[q];
            b2[q] = b1[q];
            b1[q] = b0;
        }
    }
    for (int q = 0; q < Q; q++) {
        // the sum is c_0 + y b_1 - b_2, and x (b_0 - b_1) for odd orders
        const V v = t.parity == 1 ? R(0.5) * x2[q] * (b1[q] - b2[q]) : b1[q] - R(0.5) * y2[q] * b2[q];
        R *out = t.out + (i + q) * t.columns + j;
        if (lanes == Of<R>::count) __builtin_memcpy(out, &v, BYTES);
        else for (int l = 0; l < lanes; l++) out[l] = v[l];
    }
}

template <class R>
static void evaluate(const Tile<R> &t) {
    typedef typename Of<R>::Lanes V;
    const int count = Of<R>::count;
    const long rank = t.right ? t.ends[t.terms] : 0;
    std::vector<R> kept(rank * count + count);  // the factors of a few columns, close together
    R *packed = kept.data();
    while (reinterpret_cast<unsigned long>(packed) % BYTES) packed++;
    for (long j = 0; j < t.columns; j += count) {
        const int lanes = t.columns - j < count ? int(t.columns - j) : count;
        for (long k = 0; k < rank; k++)
            for (int l = 0; l < count; l++) packed[k * count + l] = l < lanes ? t.right[k * t.right_stride + j + l] : R(0);
        const V *right = reinterpret_cast<const V *>(packed);
        long i = 0;
        for (; i + ROWS <= t.rows; i += ROWS) block<R, ROWS>(t, right, i, j, lanes);
        for (; i < t.rows; i++) block<R, 1>(t, right, i, j, lanes);
    }
}

#define TILE(name, R)                                                                                                 \
    extern "C" void name(const R *r, const R *left, const R *right, R *out, const int *ends, long rows, long columns, \
                         long right_stride, int terms, int parity, int warped, double scale) {                       \
        evaluate<R>({r, left, right, out, ends, rows, columns, right_stride, terms, parity, warped != 0, R(scale)}); \
    }

TILE(tile_float64, double)
TILE(tile_float32, float)
