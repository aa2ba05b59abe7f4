/* Time loops of masked recurrent networks, float32, one thread.
 *
 * The Python side (recurrent_native.py) hands over flat rows: step s owns the rows offset[s] .. offset[s] + rows[s] of
 * every (N, .) array, and its r-th row belongs to example r. That covers padded batches, packed sequences (fewer rows
 * at every step) and the reverse direction (more rows at every step) with one loop.
 *
 * The recurrent weight is packed once per sequence into panels of 16 columns, so the product inside the loop streams
 * it in order; a general matrix product would pack it again at every step.
 */
#include <stdint.h>
#include <string.h>

#define COLS 16
#define ROWS 6
#define DEPTH 512

#define LN2 0.69314718056f

enum { LSTM, GRU, TANH, RELU };

typedef float vec __attribute__((vector_size(32), may_alias));
typedef float loose __attribute__((vector_size(32), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))

/* ---- pointwise functions: exp(y) - 1 = 2^n (exp(r) - 1) + (2^n - 1) with |r| <= ln(2) / 2, no cancellation near zero ---- */

INLINE float exp_minus_one(float y)
{
    float t = y * (1.0f / LN2);
    t = t < -60.0f ? -60.0f : t;
    t = t > 60.0f ? 60.0f : t;
    float n = __builtin_rintf(t), r = (t - n) * LN2;
    float q = r * (1.0f + r * (1.0f / 2 + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power * q + (power - 1.0f);
}

INLINE float sigmoid(float x) { return 1.0f / (2.0f + exp_minus_one(-x)); }

INLINE float hyperbolic(float x)
{
    float e = exp_minus_one(2.0f * x);
    return e / (e + 2.0f);
}

/* ---- matrix product with a packed right-hand side ---- */

/* Panels of 16 columns of the (depth, cols) matrix m[k * across + j * down], zero beyond the last column. */
void sparring_pack(const float *m, long depth, long cols, long across, long down, float *packed)
{
    for (long j0 = 0; j0 < cols; j0 += COLS)
        for (long k = 0; k < depth; k++)
            for (long j = j0; j < j0 + COLS; j++)
                *packed++ = j < cols ? m[k * across + j * down] : 0.0f;
}

/* out = start + a @ panel for up to six rows; start may be null (zero) or equal to out. */
INLINE void tile(const int rows, long depth, const float *a, long lda, const float *panel, const float *start, long lds,
                 float *out, long ldo, long width)
{
    vec sum[ROWS][2];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        sum[r][0] = sum[r][1] = (vec){0};
        if (start) /* rows of the projection lie far apart: fetch them while the sums run */
            __builtin_prefetch(start + r * lds);
        __builtin_prefetch(out + r * ldo, 1);
    }
#pragma GCC unroll 4
    for (long k = 0; k < depth; k++) {
        vec left = *(const vec *)(panel + k * COLS), right = *(const vec *)(panel + k * COLS + 8);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            float x = a[r * lda + k];
            sum[r][0] += x * left;
            sum[r][1] += x * right;
        }
    }
    if (width == COLS) {
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            if (start) {
                sum[r][0] += *(const loose *)(start + r * lds);
                sum[r][1] += *(const loose *)(start + r * lds + 8);
            }
            *(loose *)(out + r * ldo) = sum[r][0];
            *(loose *)(out + r * ldo + 8) = sum[r][1];
        }
        return;
    }
    for (int r = 0; r < rows; r++) {
        float edge[COLS] __attribute__((aligned(32)));
        *(vec *)edge = sum[r][0];
        *(vec *)(edge + 8) = sum[r][1];
        for (long j = 0; j < width; j++)
            out[r * ldo + j] = edge[j] + (start ? start[r * lds + j] : 0.0f);
    }
}

static void tile_of(int rows, long depth, const float *a, long lda, const float *panel, const float *start, long lds,
                    float *out, long ldo, long width)
{
    switch (rows) {
    case 1: tile(1, depth, a, lda, panel, start, lds, out, ldo, width); break;
    case 2: tile(2, depth, a, lda, panel, start, lds, out, ldo, width); break;
    case 3: tile(3, depth, a, lda, panel, start, lds, out, ldo, width); break;
    case 4: tile(4, depth, a, lda, panel, start, lds, out, ldo, width); break;
    case 5: tile(5, depth, a, lda, panel, start, lds, out, ldo, width); break;
    default: tile(6, depth, a, lda, panel, start, lds, out, ldo, width);
    }
}

/* out (rows, cols) = start + a (rows, depth) @ packed (depth, cols), in slices of the depth that fit the caches. */
static void product(long rows, long cols, long depth, const float *a, long lda, const float *packed, const float *start,
                    long lds, float *out, long ldo)
{
    long blocks = (rows + ROWS - 1) / ROWS, slices = (depth + DEPTH - 1) / DEPTH;
    for (long s = 0; s < slices; s++) {
        long k0 = depth * s / slices, k1 = depth * (s + 1) / slices;
        const float *from = s ? out : start;
        long ldf = s ? ldo : lds;
        for (long j = 0; j < cols; j += COLS) {
            const float *panel = packed + j * depth + k0 * COLS;
            long width = cols - j < COLS ? cols - j : COLS;
            for (long b = 0; b < blocks; b++) { /* even blocks: 20 rows are 5+5+5+5, not 6+6+6+2 */
                long i0 = rows * b / blocks, i1 = rows * (b + 1) / blocks;
                tile_of((int)(i1 - i0), k1 - k0, a + i0 * lda + k0, lda, panel, from ? from + i0 * ldf + j : 0, ldf,
                        out + i0 * ldo + j, ldo, width);
            }
        }
    }
}

/* ---- one time step of each cell; every array here has `size` entries ---- */

static void lstm_step(long size, float *restrict gates, const float *restrict before, float *restrict cell,
                      float *restrict h)
{
    float *i = gates, *f = gates + size, *g = gates + 2 * size, *o = gates + 3 * size;
    for (long j = 0; j < 2 * size; j++) /* one short loop per function: few enough live registers to overlap iterations */
        i[j] = sigmoid(i[j]);
    for (long j = 0; j < size; j++)
        g[j] = hyperbolic(g[j]);
    for (long j = 0; j < size; j++)
        o[j] = sigmoid(o[j]);
    for (long j = 0; j < size; j++) {
        cell[j] = f[j] * before[j] + i[j] * g[j];
        h[j] = o[j] * hyperbolic(cell[j]);
    }
}

static void lstm_step_back(long size, const float *gates, const float *restrict before,
                           const float *restrict cell, const float *restrict dh, float *restrict dc, float *dgates)
{
    const float *i = gates, *f = gates + size, *g = gates + 2 * size, *o = gates + 3 * size;
#pragma GCC ivdep
    for (long j = 0; j < size; j++) { /* dgates is either gates itself or disjoint from it */
        float ij = i[j], fj = f[j], gj = g[j], oj = o[j], t = hyperbolic(cell[j]);
        float d = dc[j] + dh[j] * oj * (1.0f - t * t);
        dc[j] = d * fj;
        dgates[j] = d * gj * ij * (1.0f - ij);
        dgates[size + j] = d * before[j] * fj * (1.0f - fj);
        dgates[2 * size + j] = d * ij * (1.0f - gj * gj);
        dgates[3 * size + j] = dh[j] * t * oj * (1.0f - oj);
    }
}

/* saved = r, z, n and the recurrent half of n; x and rec are the two pre-activations. */
static void gru_step(long size, const float *restrict x, const float *restrict rec, const float *restrict before,
                     float *restrict saved, float *restrict h)
{
    for (long j = 0; j < size; j++) {
        float r = sigmoid(x[j] + rec[j]), z = sigmoid(x[size + j] + rec[size + j]), half = rec[2 * size + j];
        float n = hyperbolic(x[2 * size + j] + r * half);
        saved[j] = r;
        saved[size + j] = z;
        saved[2 * size + j] = n;
        saved[3 * size + j] = half;
        h[j] = n + z * (before[j] - n);
    }
}

/* dh becomes the part that reaches h_{t-1} past the recurrent product. */
static void gru_step_back(long size, const float *restrict saved, const float *restrict before, float *restrict dh,
                          float *restrict dx, float *restrict drec)
{
    for (long j = 0; j < size; j++) {
        float r = saved[j], z = saved[size + j], n = saved[2 * size + j], half = saved[3 * size + j];
        float dn = dh[j] * (1.0f - z) * (1.0f - n * n), dz = dh[j] * (before[j] - n) * z * (1.0f - z);
        float dr = dn * half * r * (1.0f - r);
        dh[j] *= z;
        dx[j] = drec[j] = dr;
        dx[size + j] = drec[size + j] = dz;
        dx[2 * size + j] = dn;
        drec[2 * size + j] = dn * r;
    }
}

static void plain_step(int kind, long size, float *restrict gate, float *restrict h)
{
    for (long j = 0; j < size; j++) {
        h[j] = kind == TANH ? hyperbolic(gate[j]) : (gate[j] < 0.0f ? 0.0f : gate[j]);
        gate[j] = h[j];
    }
}

static void plain_step_back(int kind, long size, const float *gate, const float *restrict dh, float *dgate)
{
#pragma GCC ivdep
    for (long j = 0; j < size; j++)
        dgate[j] = kind == TANH ? dh[j] * (1.0f - gate[j] * gate[j]) : (gate[j] > 0.0f ? dh[j] : 0.0f);
}

/* ---- whole sequences ---- */

/* One row of what enters the product: the masked state; where the inputs join it, the input and a one for the bias too. */
INLINE void enter(long size, const float *h, const float *mask, long inputs, const float *x, float *restrict out)
{
    for (long j = 0; j < size; j++)
        out[j] = mask ? h[j] * mask[j] : h[j];
    if (inputs) {
        memcpy(out + size, x, sizeof(float) * inputs);
        out[size + inputs] = 1.0f;
    }
}

/* Every call takes the examples first .. last - 1 only, so threads can share a batch.
 *
 * x (N, G*H): the input projection with all biases but the GRU's recurrent one; or, with `inputs` > 0, the inputs (N, inputs)
 * themselves, whose weights and bias then follow the recurrent ones in `packed` (not for the GRU). saved (N, S*H), which
 * may be a projection x except for the GRU, and cells (N, H) are filled when `keep`; otherwise `saved` is room for one
 * step. h, c (B, H): first, then last state. scratch: (last - first) * (H + inputs + 1), and that times 3 H more for the GRU. */
void sparring_forward(int kind, long steps, const long *offset, const long *rows, long first, long last, long size,
                      const float *x, long inputs, const float *packed, const float *bias, const float *mask, float *h, float *c,
                      float *out, float *saved, float *cells, int keep, float *scratch)
{
    long width = (kind == LSTM ? 4 : kind == GRU ? 3 : 1) * size, wide = kind == GRU ? 4 * size : width;
    long deep = size + (inputs ? inputs + 1 : 0), across = inputs ? inputs : width;
    float *entering = scratch, *rec = scratch + (last - first) * size;
    h += first * size;
    c += kind == LSTM ? first * size : 0;
    mask += mask ? first * size : 0;
    for (long s = 0; s < steps; s++) {
        long n = (rows[s] < last ? rows[s] : last) - first, at = offset[s] + first, spot = keep ? at : 0;
        if (n <= 0)
            continue;
        const float *xs = x + at * across;
        float *gates = saved + spot * wide;
        for (long r = 0; r < n; r++)
            enter(size, h + r * size, mask ? mask + r * size : 0, inputs, xs + r * across, entering + r * deep);
        if (kind == GRU) {
            for (long r = 0; r < n; r++)
                memcpy(rec + r * width, bias, sizeof(float) * width);
            product(n, width, size, entering, size, packed, rec, width, rec, width);
        } else {
            product(n, width, deep, entering, deep, packed, inputs ? 0 : xs, width, gates, width);
        }
        for (long r = 0; r < n; r++) {
            float *hr = h + r * size, *to = out + (at + r) * size, *gr = gates + r * wide;
            if (kind == LSTM) {
                float *cell = keep ? cells + (at + r) * size : entering + r * size; /* the product has read `entering` */
                lstm_step(size, gr, c + r * size, cell, to);
                memcpy(c + r * size, cell, sizeof(float) * size);
            } else if (kind == GRU) {
                gru_step(size, xs + r * width, rec + r * width, hr, gr, to);
            } else {
                plain_step(kind, size, gr, to);
            }
            memcpy(hr, to, sizeof(float) * size);
        }
    }
}

/* dh, dc (B, H): gradient of the last state, then of the first. drec: gradient of the recurrent product, (N, G*H) when
 * `keep`, else room for one step; it may be `saved` except for the GRU. dx: GRU only, like drec. entering: what entered the
 * forward product, (N, H) or (N, H + inputs + 1), for the weight gradients, or null. dmask (B, H) or null.
 * scratch: (last - first) * H. */
void sparring_backward(int kind, long steps, const long *offset, const long *rows, long first, long last, long size,
                       const float *packed, const float *mask, const float *h0, const float *c0, const float *out,
                       const float *saved, const float *cells, const float *dout, float *dh, float *dc, float *drec,
                       float *dx, int keep, const float *x, long inputs, float *entering, float *dmask, float *scratch)
{
    long width = (kind == LSTM ? 4 : kind == GRU ? 3 : 1) * size, wide = kind == GRU ? 4 * size : width;
    for (long s = steps - 1; s >= 0; s--) {
        long n = (rows[s] < last ? rows[s] : last) - first, at = offset[s] + first, spot = keep ? at : 0;
        long known = s ? rows[s - 1] : 0; /* examples from this one on begin at this step */
        float *back = drec + spot * width;
        for (long r = 0; r < n; r++) {
            long e = first + r;
            const float *before = e < known ? out + (offset[s - 1] + e) * size : h0 + e * size;
            const float *gates = saved + (at + r) * wide;
            float *dhr = dh + e * size;
            if (dout)
                for (long j = 0; j < size; j++)
                    dhr[j] += dout[(at + r) * size + j];
            if (kind == LSTM) {
                const float *cell = e < known ? cells + (offset[s - 1] + e) * size : c0 + e * size;
                lstm_step_back(size, gates, cell, cells + (at + r) * size, dhr, dc + e * size, back + r * width);
            } else if (kind == GRU) {
                gru_step_back(size, gates, before, dhr, dx + (spot + r) * width, back + r * width);
            } else {
                plain_step_back(kind, size, gates, dhr, back + r * width);
            }
        }
        if (n > 0)
            product(n, size, width, back, width, packed, 0, 0, scratch, size);
        for (long r = 0; r < n; r++) {
            long e = first + r;
            const float *before = e < known ? out + (offset[s - 1] + e) * size : h0 + e * size;
            const float *restrict d = scratch + r * size, *m = mask ? mask + e * size : 0;
            float *restrict dhr = dh + e * size;
            if (dmask) {
                float *restrict dm = dmask + e * size;
                for (long j = 0; j < size; j++)
                    dm[j] += d[j] * before[j]; /* eq. 7 */
            }
            for (long j = 0; j < size; j++)
                dhr[j] = (kind == GRU ? dhr[j] : 0.0f) + (m ? d[j] * m[j] : d[j]);
            if (entering)
                enter(size, before, m, inputs, x + (at + r) * inputs, entering + (at + r) * (size + (inputs ? inputs + 1 : 0)));
        }
    }
}
