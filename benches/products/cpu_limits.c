// Limits of a small AVX2+FMA machine for a CPU decode backend.
// build: gcc -O3 -mavx2 -mfma -mf16c -pthread cpu_limits.c -o cpu_limits
// run:   ./cpu_limits [bw|flops|gemv|model|ask|all] [threads]
// bw:    streaming AVX2 loads over 2 GiB            (GB/s)
// flops: register-only f32 FMA                      (GFLOP/s)
// gemv:  bf16 row-major weights x f32 activations, B=1..16 rows of activations,
//        one Qwen3-0.6B sized matrix set bigger than L3 (GB/s of weight bytes)
// ask:   model, on demand: reads "threads rows" lines and answers with wall and CPU ms of one step (benches/products.rs)
// model: all GEMMs of one Qwen3-0.6B decode step (28 layers + tied head), L(B) in ms
// attention, norms and sampling are not included: this is the weight-streaming floor.
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
static void *big(size_t n) {
  void *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) { perror("mmap"); exit(1); }
  madvise(p, n, MADV_HUGEPAGE);
  return p;
}
static int cmpd(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return (x > y) - (x < y); }

// ---------- a persistent pool of at most 2 threads with a spin barrier ----------
typedef void (*job_t)(int tid, int nt, void *arg);
static void timed(job_t f, int tid, int nt, void *arg);
static struct { volatile int gen, done, quit; job_t f; void *arg; int nt; } P;
static void *worker(void *a) {
  int tid = (int)(intptr_t)a, g = 0;
  for (;;) {
    while (__atomic_load_n(&P.gen, __ATOMIC_ACQUIRE) == g) { if (P.quit) return 0; _mm_pause(); }
    g = P.gen;
    if (tid < P.nt) timed(P.f, tid, P.nt, P.arg);
    __atomic_fetch_add(&P.done, 1, __ATOMIC_RELEASE);
  }
}
static int pool_workers = 0;
static void pool_start(int nt) {
  for (int i = pool_workers + 1; i < nt; i++) { pthread_t t; pthread_create(&t, 0, worker, (void *)(intptr_t)i); pool_workers++; }
}
static double tcpu(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
static double cpu_used[16]; // CPU seconds each thread spent inside its jobs since cpu_reset()
static void cpu_reset(void) { memset(cpu_used, 0, sizeof cpu_used); }
// the longest thread's CPU time: what the wall time would be if every thread had a core of its own
static double cpu_max(void) { double m = 0; for (int i = 0; i < 16; i++) if (cpu_used[i] > m) m = cpu_used[i]; return m; }
static void timed(job_t f, int tid, int nt, void *arg) { double t = tcpu(); f(tid, nt, arg); cpu_used[tid] += tcpu() - t; }
static void par(int nt, job_t f, void *arg) {
  if (nt == 1) { timed(f, 0, 1, arg); return; }
  P.f = f; P.arg = arg; P.nt = nt; P.done = 0;
  __atomic_fetch_add(&P.gen, 1, __ATOMIC_RELEASE);
  timed(f, 0, nt, arg);
  while (__atomic_load_n(&P.done, __ATOMIC_ACQUIRE) < pool_workers) _mm_pause();
}

// ---------- bandwidth ----------
struct bw { const char *p; size_t n; float sink[16]; };
static void bw_job(int tid, int nt, void *arg) {
  struct bw *b = arg; size_t per = b->n / nt; const float *p = (const float *)(b->p + per * tid);
  __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
  for (size_t i = 0; i < per / 4; i += 64) {
    a0 = _mm256_add_ps(a0, _mm256_load_ps(p + i));      a1 = _mm256_add_ps(a1, _mm256_load_ps(p + i + 8));
    a2 = _mm256_add_ps(a2, _mm256_load_ps(p + i + 16)); a3 = _mm256_add_ps(a3, _mm256_load_ps(p + i + 24));
    a4 = _mm256_add_ps(a4, _mm256_load_ps(p + i + 32)); a5 = _mm256_add_ps(a5, _mm256_load_ps(p + i + 40));
    a6 = _mm256_add_ps(a6, _mm256_load_ps(p + i + 48)); a7 = _mm256_add_ps(a7, _mm256_load_ps(p + i + 56));
  }
  float t[8]; _mm256_storeu_ps(t, _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(a0, a1), _mm256_add_ps(a2, a3)), _mm256_add_ps(_mm256_add_ps(a4, a5), _mm256_add_ps(a6, a7))));
  b->sink[tid] = t[0] + t[3];
}
static void run_bw(int maxt) {
  size_t n = 2ull << 30; struct bw b = { big(n), n, {0} }; memset((void *)b.p, 0, n);
  for (int nt = 1; nt <= maxt; nt++) {
    double r[9], c[9]; par(nt, bw_job, &b);
    for (int i = 0; i < 9; i++) { cpu_reset(); double t = now(); par(nt, bw_job, &b); r[i] = n / (now() - t) / 1e9; c[i] = n / cpu_max() / 1e9; }
    qsort(r, 9, 8, cmpd); qsort(c, 9, 8, cmpd);
    printf("bw threads=%d GB/s wall median %.2f max %.2f | per CPU time median %.2f max %.2f\n", nt, r[4], r[8], c[4], c[8]);
  }
  munmap((void *)b.p, n);
}

// ---------- peak FMA ----------
static volatile float fsink[4];
static void fl_job(int tid, int nt, void *arg) {
  long it = *(long *)arg; (void)nt;
  __m256 a[12]; for (int i = 0; i < 12; i++) a[i] = _mm256_set1_ps(1e-3f * i);
  __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-4f);
  for (long k = 0; k < it; k++)
    for (int i = 0; i < 12; i++) a[i] = _mm256_fmadd_ps(a[i], x, y);
  __m256 s = a[0]; for (int i = 1; i < 12; i++) s = _mm256_add_ps(s, a[i]);
  float t[8]; _mm256_storeu_ps(t, s); fsink[tid] = t[0];
}
static void run_flops(int maxt) {
  long it = 20000000;
  for (int nt = 1; nt <= maxt; nt++) {
    double r[9], c[9];
    for (int i = 0; i < 9; i++) { cpu_reset(); double t = now(), w = (double)nt * it * 12 * 16 / 1e9; par(nt, fl_job, &it); r[i] = w / (now() - t); c[i] = w / cpu_max(); }
    qsort(r, 9, 8, cmpd); qsort(c, 9, 8, cmpd);
    printf("flops threads=%d GFLOP/s wall median %.1f max %.1f | per CPU time median %.1f max %.1f\n", nt, r[4], r[8], c[4], c[8]);
  }
}

// ---------- bf16 GEMM with few activation rows ----------
// y[b][r] = sum_k w[r][k]*x[b][k]. Tile: R weight rows x Bt activation rows, k in steps of 16.
// bf16 -> f32: 16 bf16 in one 256-bit load; even lanes by <<16, odd lanes by & 0xffff0000.
// Activations are stored once per step, permuted so that even/odd halves match (xe, xo).
static inline __m256 hs8(__m256i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
static inline __m256 ho8(__m256i v) { return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000))); }
static inline float hsum(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s)); s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1)); return _mm_cvtss_f32(s);
}
#define KERN(NAME, R, BT)                                                                                         \
  static inline __attribute__((always_inline)) void NAME(const uint16_t *w, int K, const float *x, float *y, int ldy) { \
    __m256 acc[R][BT];                                                                                            \
    for (int r = 0; r < R; r++) for (int b = 0; b < BT; b++) acc[r][b] = _mm256_setzero_ps();                     \
    for (int k = 0; k < K; k += 16) {                                                                             \
      __m256 we[R], wo[R];                                                                                        \
      _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                                                       \
        const uint16_t *q = w + (size_t)r * K + k;                                                                \
        _mm_prefetch((const char *)(q + 4 * (size_t)K), _MM_HINT_T0);                                                       \
        __m256i v = _mm256_loadu_si256((const __m256i *)q); we[r] = hs8(v); wo[r] = ho8(v);                       \
      }                                                                                                           \
      _Pragma("GCC unroll 8") for (int b = 0; b < BT; b++) {                                                      \
        __m256 xe = _mm256_loadu_ps(x + (size_t)b * K + k), xo = _mm256_loadu_ps(x + (size_t)b * K + k + 8);      \
        _Pragma("GCC unroll 8") for (int r = 0; r < R; r++) {                                                     \
          acc[r][b] = _mm256_fmadd_ps(we[r], xe, acc[r][b]); acc[r][b] = _mm256_fmadd_ps(wo[r], xo, acc[r][b]);   \
        }                                                                                                         \
      }                                                                                                           \
    }                                                                                                             \
    for (int r = 0; r < R; r++) for (int b = 0; b < BT; b++) y[(size_t)b * ldy + r] = hsum(acc[r][b]);            \
  }
KERN(k4x1, 4, 1) KERN(k4x2, 4, 2) KERN(k2x4, 2, 4)
struct mm { const uint16_t *w; int rows, K, B; const float *x; float *y; };
static void mm_rows(const struct mm *m, int r0, int r1) {
  int K = m->K, ld = m->rows;
  switch (m->B) {
  case 1: for (int r = r0; r < r1; r += 4) k4x1(m->w + (size_t)r * K, K, m->x, m->y + r, ld); break;
  case 2: for (int r = r0; r < r1; r += 4) k4x2(m->w + (size_t)r * K, K, m->x, m->y + r, ld); break;
  default: // B a multiple of 4: keep a block of weight rows hot in L1/L2, sweep the activations over it
    for (int r = r0; r < r1; r += 8)
      for (int b = 0; b < m->B; b += 4)
        for (int q = r; q < r + 8; q += 2) k2x4(m->w + (size_t)q * K, K, m->x + (size_t)b * K, m->y + (size_t)b * ld + q, ld);
  }
}
static void mm_job(int tid, int nt, void *arg) {
  struct mm *m = arg; int per = (m->rows / nt) & ~7, r0 = per * tid, r1 = tid == nt - 1 ? m->rows : r0 + per; mm_rows(m, r0, r1);
}
static uint32_t rs = 1; static float rnd(void) { rs = rs * 1664525u + 1013904223u; return ((rs >> 8) / 16777216.0f - 0.5f); }
static uint16_t tobf(float f) { uint32_t u; memcpy(&u, &f, 4); return (u + 0x7fff + ((u >> 16) & 1)) >> 16; }
static float ofbf(uint16_t h) { uint32_t u = (uint32_t)h << 16; float f; memcpy(&f, &u, 4); return f; }
// permute 16 floats so that [0..8) hold the even and [8..16) the odd elements
static void perm(const float *in, float *out, int K) { for (int k = 0; k < K; k += 16) for (int i = 0; i < 8; i++) { out[k + i] = in[k + 2 * i]; out[k + 8 + i] = in[k + 2 * i + 1]; } }

static void check(void) {
  int K = 1024, rows = 16; uint16_t *w = malloc(2 * K * rows); float *x = malloc(4 * K * 16), *xp = malloc(4 * K * 16), y[16 * 16];
  for (int i = 0; i < K * rows; i++) w[i] = tobf(rnd());
  for (int i = 0; i < K * 16; i++) x[i] = rnd();
  for (int b = 0; b < 16; b++) perm(x + b * K, xp + b * K, K);
  for (int B = 1; B <= 16; B *= 2) {
    struct mm m = { w, rows, K, B, xp, y }; mm_rows(&m, 0, rows); double worst = 0;
    for (int b = 0; b < B; b++) for (int r = 0; r < rows; r++) {
      double s = 0; for (int k = 0; k < K; k++) s += (double)ofbf(w[r * K + k]) * x[b * K + k];
      double d = s - y[b * rows + r]; if (d < 0) d = -d; if (d > worst) worst = d;
    }
    if (worst > 1e-3) { printf("check B=%d FAILED %g\n", B, worst); exit(1); }
  }
  free(w); free(x); free(xp);
}
static void run_gemv(int maxt) {
  int K = 1024, rows = 151936; size_t wb = 2ull * K * rows;
  uint16_t *w = big(wb); for (size_t i = 0; i < (size_t)K * rows; i++) w[i] = tobf(rnd());
  float *x = big(4ull * K * 16), *y = big(4ull * rows * 16); for (int i = 0; i < K * 16; i++) x[i] = rnd();
  for (int nt = 1; nt <= maxt; nt++)
    for (int B = 1; B <= 16; B *= 2) {
      struct mm m = { w, rows, K, B, x, y }; double r[7], c[7]; par(nt, mm_job, &m);
      for (int i = 0; i < 7; i++) { cpu_reset(); double t = now(); par(nt, mm_job, &m); r[i] = now() - t; c[i] = cpu_max(); }
      qsort(r, 7, 8, cmpd); qsort(c, 7, 8, cmpd);
      printf("gemv head 151936x1024 threads=%d B=%d wall ms %.2f (min %.2f) | CPU ms median %.2f min %.2f | by median CPU time: weight GB/s %.2f GFLOP/s %.1f\n", nt, B, r[3] * 1e3, r[0] * 1e3, c[3] * 1e3, c[0] * 1e3, wb / c[3] / 1e9, 2.0 * B * K * rows / c[3] / 1e9);
    }
  munmap(w, wb);
}
// Qwen3-0.6B: hidden 1024, inter 3072, 28 layers, q 16x128, kv 8x128, vocab 151936 tied
static void run_model(int maxt) {
  int H = 1024, I = 3072, L = 28, Q = 2048, KV = 1024, V = 151936;
  int rows[] = { Q + 2 * KV, H, 2 * I, H }, Ks[] = { H, Q, H, I };
  size_t lay = 0; for (int i = 0; i < 4; i++) lay += (size_t)rows[i] * Ks[i];
  size_t tot = lay * L + (size_t)V * H; uint16_t *w = big(tot * 2);
  for (size_t i = 0; i < tot; i++) w[i] = tobf(rnd());
  float *x = big(4ull * 3072 * 16), *y = big(4ull * V * 16); for (int i = 0; i < 3072 * 16; i++) x[i] = rnd();
  printf("model Qwen3-0.6B shapes: weight bytes per step %.1f MB (layers %.1f, head %.1f)\n", tot * 2 / 1e6, lay * L * 2 / 1e6, (double)V * H * 2 / 1e6);
  for (int rep = 0; rep < 2; rep++)
  for (int nt = 1; nt <= maxt; nt++)
    for (int B = 1; B <= 16; B *= 2) {
      double r[5], c[5];
      for (int i = 0; i < 5; i++) {
        cpu_reset(); double t = now(); const uint16_t *p = w;
        for (int l = 0; l < L; l++) for (int j = 0; j < 4; j++) { struct mm m = { p, rows[j], Ks[j], B, x, y }; par(nt, mm_job, &m); p += (size_t)rows[j] * Ks[j]; }
        struct mm m = { p, V, H, B, x, y }; par(nt, mm_job, &m); r[i] = now() - t; c[i] = cpu_max();
      }
      qsort(r, 5, 8, cmpd); qsort(c, 5, 8, cmpd);
      printf("model rep=%d threads=%d B=%d L(B) wall ms median %.1f min %.1f | CPU ms median %.1f min %.1f | by median CPU time: GB/s %.2f GFLOP/s %.1f tok/s %.1f\n", rep, nt, B, r[2] * 1e3, r[0] * 1e3, c[2] * 1e3, c[0] * 1e3, tot * 2 / c[2] / 1e9, 2.0 * B * tot / c[2] / 1e9, B / c[2]);
    }
  munmap(w, tot * 2);
}
// One step of the model for each "threads rows" that arrives, so that another program can take turns with this one.
static void run_ask(void) {
  int H = 1024, I = 3072, L = 28, Q = 2048, KV = 1024, V = 151936, nt, B;
  int rows[] = { Q + 2 * KV, H, 2 * I, H }, Ks[] = { H, Q, H, I };
  size_t lay = 0; for (int i = 0; i < 4; i++) lay += (size_t)rows[i] * Ks[i];
  size_t tot = lay * L + (size_t)V * H; uint16_t *w = big(tot * 2);
  for (size_t i = 0; i < tot; i++) w[i] = tobf(rnd());
  float *x = big(4ull * 3072 * 16), *y = big(4ull * V * 16); for (int i = 0; i < 3072 * 16; i++) x[i] = rnd();
  while (scanf("%d %d", &nt, &B) == 2) {
    cpu_reset(); double t = now(); const uint16_t *p = w;
    for (int l = 0; l < L; l++) for (int j = 0; j < 4; j++) { struct mm m = { p, rows[j], Ks[j], B, x, y }; par(nt, mm_job, &m); p += (size_t)rows[j] * Ks[j]; }
    struct mm m = { p, V, H, B, x, y }; par(nt, mm_job, &m);
    printf("%.4f %.4f\n", (now() - t) * 1e3, cpu_max() * 1e3);
  }
  munmap(w, tot * 2);
}
int main(int c, char **v) {
  const char *what = c > 1 ? v[1] : "all"; int nt = c > 2 ? atoi(v[2]) : 2, all = !strcmp(what, "all");
  setvbuf(stdout, 0, _IOLBF, 0); check(); pool_start(nt);
  if (!strcmp(what, "ask")) { run_ask(); P.quit = 1; return 0; }
  if (all || !strcmp(what, "bw")) run_bw(nt);
  if (all || !strcmp(what, "flops")) run_flops(nt);
  if (all || !strcmp(what, "gemv")) run_gemv(nt);
  if (all || !strcmp(what, "model")) run_model(nt);
  P.quit = 1; return 0;
}
