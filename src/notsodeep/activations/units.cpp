// A layer of units that see the norm of their input in one pass: the norms, coefficients, units, and their slopes.
// norm_units.py builds and calls it; elementary.py, conditioned.py and thresholds.py say the same in plain torch.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#ifdef __linux__  // the threads of torch, where it has brought them along
extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned);
__attribute__((weak)) int omp_get_thread_num();
__attribute__((weak)) int omp_get_num_threads();
}
#endif

constexpr int BYTES = 64, AT_ONCE = 4;

template <class R> struct Of;
template <> struct Of<float> {
    typedef float Lanes __attribute__((vector_size(BYTES)));
    typedef int Bits __attribute__((vector_size(BYTES)));
    static constexpr int count = 16, mantissa = 23, one = 0x3f800000, middle = 0x3f3504f3, terms = 4;
};
template <> struct Of<double> {
    typedef double Lanes __attribute__((vector_size(BYTES)));
    typedef long long Bits __attribute__((vector_size(BYTES)));
    static constexpr int count = 8, mantissa = 52, terms = 7;
    static constexpr long long one = 0x3ff0000000000000, middle = 0x3fe6a09e667f3bcd;  // middle: sqrt(1/2)
};

struct Plan {
    const double *table;  // (orders, groups * functions of u), the rows filled up to whole lanes
    double square, low, high, centre, half;  // alpha^2; the range of norms, and that of the polynomials' variable
    double leak;                             // of units with thresholds, which need nothing else
    int groups, orders, sizes[4], order, chebyshev, logarithmic, power;
};

template <class R>
struct Layer {
    const Plan *plan;
    const R *before, *inputs;  // (rows, width), (rows, features)
    const R *thresholds;       // of every unit, and their gains: (2, width); nothing for norm-conditioned units
    R *out, *slope;            // (rows, width) each; the slopes may be left out
    long rows, width, features;
    double scale, gain;
};

template <class R>
static inline typename Of<R>::Lanes logarithm(typename Of<R>::Lanes a) {
    // fdlibm's series in (m - 1) / (m + 1), m the mantissa between sqrt(1/2) and sqrt(2)
    typedef typename Of<R>::Lanes V;
    static const R k[] = {R(6.666666666666735130e-01), R(3.999999999940941908e-01), R(2.857142874366239149e-01),
                          R(2.222219843214978396e-01), R(1.818357216161805012e-01), R(1.531383769920937332e-01),
                          R(1.479819860511658591e-01)};
    typename Of<R>::Bits bits, exponent;
    __builtin_memcpy(&bits, &a, BYTES);
    bits += Of<R>::one - Of<R>::middle;
    exponent = (bits >> Of<R>::mantissa) - (Of<R>::one >> Of<R>::mantissa);
    bits = (bits & ((decltype(Of<R>::one)(1) << Of<R>::mantissa) - 1)) + Of<R>::middle;
    V m;
    __builtin_memcpy(&m, &bits, BYTES);
    const V s = (m - R(1)) / (m + R(1)), z = s * s;
    V sum = V{} + k[Of<R>::terms - 1];
    for (int i = Of<R>::terms - 2; i >= 0; i--) sum = sum * z + k[i];
    return __builtin_convertvector(exponent, V) * R(0.693147180559945309) + (s * (z * sum) + R(2) * s);
}

// a polynomial and its derivative in z; x is z, or 2 (z - 1) for Clenshaw's rule in Reinsch's form
template <class R, int Q, bool S>
static inline void polynomial(bool chebyshev, const typename Of<R>::Lanes *x, const R *k, int size,
                              typename Of<R>::Lanes *value, typename Of<R>::Lanes *change) {
    typedef typename Of<R>::Lanes V;
    V step[Q], other[Q];
    for (int q = 0; q < Q; q++) value[q] = change[q] = step[q] = other[q] = V{};
    if (!chebyshev) {
        for (int q = 0; q < Q; q++) value[q] += k[size - 1];
        for (int i = size - 2; i >= 0; i--)
            for (int q = 0; q < Q; q++) {
                if (S) change[q] = change[q] * x[q] + value[q];
                value[q] = value[q] * x[q] + k[i];
            }
        return;
    }
    for (int i = size - 1; i > 0; i--)
        for (int q = 0; q < Q; q++) {
            if (S) other[q] += value[q] + x[q] * change[q];
            if (S) change[q] += other[q];
            step[q] += x[q] * value[q] + k[i];
            value[q] += step[q];
        }
    for (int q = 0; q < Q; q++) {
        if (S) change[q] = R(2) * other[q] + value[q] + x[q] * change[q];
        value[q] = k[0] + (step[q] + R(0.5) * x[q] * value[q]);
    }
}

template <class R, int Q, bool S>
static inline void block(const Plan &p, const R *k, R inverse, const R *in, R *out, R *slope, int lanes) {
    typedef typename Of<R>::Lanes V;
    const V zero = {};
    const R square = R(p.square);
    V u[Q], root[Q], c[Q], z[Q], x[Q], flat[Q], sum[Q], change[Q], part[Q], own[Q];  // flat: (alpha u c)^2 = 1 - c^2
    for (int q = 0; q < Q; q++) {
        u[q] = zero;
        if (lanes == Of<R>::count) __builtin_memcpy(&u[q], in + q * lanes, BYTES);
        else for (int l = 0; l < lanes; l++) u[q][l] = in[l];
        u[q] *= inverse;
        const V s = square * u[q] * u[q] + R(1);
        for (int l = 0; l < Of<R>::count; l++) root[q][l] = std::sqrt(s[l]);
        c[q] = R(1) / root[q];
        z[q] = R(2) * c[q] - R(1);
        flat[q] = square * u[q] * u[q] * c[q] * c[q];
        x[q] = p.chebyshev ? R(-4) * flat[q] / (R(1) + c[q]) : z[q];
        sum[q] = change[q] = zero;
    }
    if (p.sizes[0]) {
        polynomial<R, Q, S>(p.chebyshev, x, k, p.sizes[0], part, own);
        for (int q = 0; q < Q; q++) {
            sum[q] += part[q] * root[q];
            if (S) change[q] += square * u[q] * c[q] * (part[q] - R(2) * c[q] * own[q]);
        }
        k += p.sizes[0];
    }
    if (p.sizes[1]) {
        polynomial<R, Q, S>(p.chebyshev, x, k, p.sizes[1], part, own);
        for (int q = 0; q < Q; q++) {
            sum[q] += part[q] * u[q];
            if (S) change[q] += part[q] - R(2) * c[q] * flat[q] * own[q];
        }
        k += p.sizes[1];
    }
    if (p.sizes[2] || p.sizes[3]) {
        V size[Q], log[Q], sign[Q];
        for (int q = 0; q < Q; q++) {
            sign[q] = u[q] > zero ? zero + R(1) : (u[q] < zero ? zero - R(1) : zero);
            size[q] = u[q] * sign[q];
            log[q] = logarithm<R>(size[q] > zero + R(1e-15) ? size[q] : zero + R(1e-15));
        }
        for (int odd = 0; odd < 2; odd++) {
            if (!p.sizes[2 + odd]) continue;
            polynomial<R, Q, S>(false, z, k, p.sizes[2 + odd], part, own);
            k += p.sizes[2 + odd];
            for (int q = 0; q < Q; q++) {
                V f, d = zero;  // the singular function and its derivative
                if (p.order == 0) {
                    const V floor = u[q] * u[q];
                    f = odd ? sign[q] : log[q];
                    if (S && !odd) d = u[q] / (floor > zero + R(1e-30) ? floor : zero + R(1e-30));
                } else if (p.order == 1) {
                    f = odd ? u[q] * log[q] : size[q];
                    if (S) d = odd ? log[q] + R(1) : sign[q];
                } else {
                    f = odd ? u[q] * size[q] : u[q] * u[q] * log[q];
                    if (S) d = odd ? R(2) * size[q] : (R(2) * log[q] + R(1)) * u[q];
                }
                const V c2 = c[q] * c[q];
                sum[q] += f * c2 * part[q];
                if (S) change[q] += c2 * (d * part[q] - R(2) * square * u[q] * f * c2 * (part[q] + c[q] * own[q]));
            }
        }
    }
    for (int q = 0; q < Q; q++) {
        if (S) change[q] *= inverse;
        if (lanes == Of<R>::count) {
            __builtin_memcpy(out + q * lanes, &sum[q], BYTES);
            if (S) __builtin_memcpy(slope + q * lanes, &change[q], BYTES);
        } else
            for (int l = 0; l < lanes; l++) {
                out[l] = sum[q][l];
                if (S) slope[l] = change[q][l];
            }
    }
}

template <class R>
static double norm(const R *x, long size) {
    constexpr int SUMS = 32;  // enough of them that none waits for another
    double sums[SUMS] = {}, total = 0.0;
    long i = 0;
    for (; i + SUMS <= size; i += SUMS)
        for (int l = 0; l < SUMS; l++) sums[l] += double(x[i + l]) * double(x[i + l]);
    for (; i < size; i++) total += double(x[i]) * double(x[i]);
    for (double s : sums) total += s;
    return std::sqrt(total);
}

template <class R>
static void coefficients(const Plan &p, double norm, double gain, int size, double *chebyshev, R *k) {
    typedef Of<double>::Lanes V;
    const double inside = std::min(std::max(norm, p.low), p.high);
    const double t = p.half > 0.0 ? ((p.logarithmic ? std::log(inside) : inside) - p.centre) / p.half : 0.0;
    double now = p.power ? gain * norm : gain, before = now * t;  // T_0 and T_-1 = T_1
    for (int m = 0; m < p.orders; m++) {
        chebyshev[m] = now;
        const double next = 2.0 * t * now - before;
        before = now;
        now = next;
    }
    for (int b = 0; b < size; b += Of<double>::count) {
        V even = {}, odd = {}, row;
        for (int m = 0; m < p.orders; m++) {
            __builtin_memcpy(&row, p.table + m * size + b, BYTES);
            (m % 2 ? odd : even) += chebyshev[m] * row;
        }
        even += odd;
        for (int l = 0; l < Of<double>::count; l++) k[b + l] = R(even[l]);
    }
}

template <class R, bool S>
static void some_rows(const Layer<R> &t, long start, long stop) {
    const Plan &p = *t.plan;
    const int functions = p.sizes[0] + p.sizes[1] + p.sizes[2] + p.sizes[3], count = Of<R>::count;
    const int lanes = Of<double>::count, size = (p.groups * functions + lanes - 1) / lanes * lanes;
    std::vector<double> chebyshev(p.orders);
    std::vector<R> k(size);
    for (long i = start; i < stop; i++) {
        const double length = norm(t.inputs + i * t.features, t.features);
        coefficients(p, t.scale * length, t.gain, size, chebyshev.data(), k.data());
        const R inverse = R(1.0 / std::max({length, std::sqrt(double(std::numeric_limits<R>::min())), 1e-30}));
        const R *in = t.before + i * t.width;
        R *out = t.out + i * t.width, *slope = S ? t.slope + i * t.width : nullptr;
        for (int h = 0; h < p.groups; h++) {
            const long each = t.width / p.groups, more = t.width % p.groups;
            long j = h * each + std::min<long>(h, more);
            const long end = j + each + (h < more);
            const R *own = k.data() + h * functions;
            for (; j + AT_ONCE * count <= end; j += AT_ONCE * count)
                block<R, AT_ONCE, S>(p, own, inverse, in + j, out + j, S ? slope + j : nullptr, count);
            for (; j < end; j += count)
                block<R, 1, S>(p, own, inverse, in + j, out + j, S ? slope + j : nullptr, int(std::min<long>(count, end - j)));
        }
    }
}

template <class R, bool S>
static void some_threshold_rows(const Layer<R> &t, long start, long stop) {
    const R *gain = t.thresholds + t.width, leak = R(t.plan->leak), factor = R(t.scale * t.gain);
    for (long i = start; i < stop; i++) {
        const R length = R(norm(t.inputs + i * t.features, t.features));
        const R *in = t.before + i * t.width;
        R *out = t.out + i * t.width, *slope = S ? t.slope + i * t.width : nullptr;
#pragma GCC ivdep  // in and out may be the same
        for (long j = 0; j < t.width; j++) {
            const R above = in[j] - length * t.thresholds[j], steep = (above > R(0) ? R(1) : leak) * (factor * gain[j]);
            out[j] = above * steep;
            if (S) slope[j] = steep;
        }
    }
}

template <class R>
static void evaluate(const Layer<R> &t, long start, long stop) {
    if (t.thresholds)
        return t.slope ? some_threshold_rows<R, true>(t, start, stop) : some_threshold_rows<R, false>(t, start, stop);
    t.slope ? some_rows<R, true>(t, start, stop) : some_rows<R, false>(t, start, stop);
}

#ifdef __linux__
template <class R>
static void share(void *layer) {
    const Layer<R> &t = *static_cast<Layer<R> *>(layer);
    const long me = omp_get_thread_num(), all = omp_get_num_threads();
    evaluate<R>(t, t.rows * me / all, t.rows * (me + 1) / all);
}
#endif

template <class R>
static void run(Layer<R> layer, long threads) {
#ifdef __linux__
    if (threads > 1 && GOMP_parallel && omp_get_thread_num && omp_get_num_threads)
        return GOMP_parallel(share<R>, &layer, unsigned(threads), 0);
#endif
    evaluate<R>(layer, 0, layer.rows);
}

#define UNITS(name, R)                                                                                                 \
    extern "C" void name(const Plan *plan, const R *before, const R *inputs, const R *thresholds, R *out, R *slope,   \
                         long rows, long width, long features, double scale, double gain, long threads) {                                                 \
        run<R>({plan, before, inputs, thresholds, out, slope, rows, width, features, scale, gain}, threads);                            \
    }

UNITS(units_float64, double)
UNITS(units_float32, float)
