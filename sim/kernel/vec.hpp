// Vectors of unsigned numbers and of bits for tile kernels: one lane per tile.
//
// There are two backends. The first uses AVX-512 intrinsics; bits are mask registers. The second
// uses GCC's vector extensions; bits are vectors of 0 and ~0, and AVX2 intrinsics replace code that
// GCC compiles badly. The second is for machines without AVX-512. SYSTOLITH_NO_AVX512 selects it
// everywhere; SYSTOLITH_PORTABLE_VECTORS (the bytes of a vector) disables all intrinsics. `E` is
// the width of a lane in bits: 16, 32 or 64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if !defined(SYSTOLITH_PORTABLE_VECTORS)
#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) \
    && defined(__AVX512CD__) && !defined(SYSTOLITH_NO_AVX512)
#define SYSTOLITH_AVX512 1
#include <immintrin.h>
#elif defined(__AVX2__)
#define SYSTOLITH_AVX2 1
#include <immintrin.h>
#endif
#endif

// Each backend has a namespace, so that code for several can be linked together.
#if defined(SYSTOLITH_AVX512)
#define SYSTOLITH_BACKEND avx512
#elif defined(SYSTOLITH_AVX2)
#define SYSTOLITH_BACKEND avx2
#elif defined(SYSTOLITH_PORTABLE_VECTORS)
#define SYSTOLITH_JOINED(name, number) name##number
#define SYSTOLITH_NAME(name, number) SYSTOLITH_JOINED(name, number)
#define SYSTOLITH_BACKEND SYSTOLITH_NAME(portable, SYSTOLITH_PORTABLE_VECTORS)
#else
#define SYSTOLITH_BACKEND portable
#endif

namespace systolith::lanes {
inline namespace SYSTOLITH_BACKEND {

template <int E> struct Lane;
template <> struct Lane<16> { using Number = uint16_t; };
template <> struct Lane<32> { using Number = uint32_t; };
template <> struct Lane<64> { using Number = uint64_t; };
template <int E> using Number = typename Lane<E>::Number;

// Packed port bits, 32 to a word, as the DPI passes them.

// Bits [pos, pos + width) of a packed value; width is at most 64.
inline uint64_t get_bits(const uint32_t* from, size_t pos, int width) {
    const size_t word = pos / 32, shift = pos % 32;
    const size_t last = (pos + width - 1) / 32;
    uint64_t value = from[word];
    if (last > word) value |= uint64_t(from[word + 1]) << 32;
    value >>= shift;
    if (last > word + 1) value |= uint64_t(from[word + 2]) << (64 - shift);
    return width == 64 ? value : value & ((uint64_t(1) << width) - 1);
}

// Sets bits of a packed value; they must be zero before.
inline void put_bits(uint32_t* to, size_t pos, int width, uint64_t value) {
    const size_t word = pos / 32, shift = pos % 32;
    const size_t last = (pos + width - 1) / 32;
    const uint64_t lower = value << shift;
    to[word] |= uint32_t(lower);
    if (last > word) to[word + 1] |= uint32_t(lower >> 32);
    if (last > word + 1) to[word + 2] |= uint32_t(value >> (64 - shift));
}

// Unpacks elements [first, first + count) of `width` bits.
template <typename T>
inline void unpack(T* to, const uint32_t* from, size_t first, size_t count, int width) {
    if (width == int(sizeof(T)) * 8) {
        std::memcpy(to, reinterpret_cast<const char*>(from) + first * sizeof(T),
                    count * sizeof(T));
    } else {
        for (size_t i = 0; i < count; ++i) to[i] = T(get_bits(from, (first + i) * width, width));
    }
}

template <typename T>
inline void pack(uint32_t* to, size_t first, const T* from, size_t count, int width) {
    if (width == int(sizeof(T)) * 8) {
        std::memcpy(reinterpret_cast<char*>(to) + first * sizeof(T), from, count * sizeof(T));
    } else {
        for (size_t i = 0; i < count; ++i) put_bits(to, (first + i) * width, width, from[i]);
    }
}

// Unpacks bits [first, first + count), 64 to each number of `to`.
inline void unpack_bits(uint64_t* to, const uint32_t* from, size_t first, size_t count) {
    for (size_t i = 0; i < count; i += 64) {
        to[i / 64] = get_bits(from, first + i, count - i < 64 ? int(count - i) : 64);
    }
}

inline void pack_bits(uint32_t* to, size_t first, const uint64_t* from, size_t count) {
    for (size_t i = 0; i < count; i += 64) {
        const int width = count - i < 64 ? int(count - i) : 64;
        const uint64_t kept = width == 64 ? from[i / 64]
                                          : from[i / 64] & ((uint64_t(1) << width) - 1);
        put_bits(to, first + i, width, kept);
    }
}

// Zeros above the highest one among the `width` lowest bits of x, at most `most`; `most` if there is
// no one. `most` is one less than a power of two.
inline uint64_t scalar_clz(uint64_t x, int width, int most) {
    const uint64_t kept = x << (64 - width);
    const int zeros = kept ? __builtin_clzll(kept) : most;
    return uint64_t(zeros < most ? zeros : most);
}

#ifdef SYSTOLITH_AVX512

template <int E> struct Bits;
template <> struct Bits<16> { __mmask32 m; };
template <> struct Bits<32> { __mmask16 m; };
template <> struct Bits<64> { __mmask8 m; };
template <int E> struct Vec { __m512i v; };

template <int E> inline constexpr int LANES = 512 / E;
// Whether instructions can broadcast an operand in memory to all lanes.
template <int E> inline constexpr bool BROADCASTS = E > 16;

template <int E> inline Vec<E> bcast(uint64_t x) {
    if constexpr (E == 16) return {_mm512_set1_epi16(short(x))};
    else if constexpr (E == 32) return {_mm512_set1_epi32(int(x))};
    else return {_mm512_set1_epi64((long long)(x))};
}
template <int E> inline Vec<E> zero() { return {_mm512_setzero_si512()}; }

template <int E> inline Vec<E> and_(Vec<E> a, Vec<E> b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int E> inline Vec<E> or_(Vec<E> a, Vec<E> b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int E> inline Vec<E> xor_(Vec<E> a, Vec<E> b) { return {_mm512_xor_si512(a.v, b.v)}; }

#define SYSTOLITH_BINARY(name, intrinsic) \
    template <int E> inline Vec<E> name(Vec<E> a, Vec<E> b) { \
        if constexpr (E == 16) return {_mm512_##intrinsic##_epi16(a.v, b.v)}; \
        else if constexpr (E == 32) return {_mm512_##intrinsic##_epi32(a.v, b.v)}; \
        else return {_mm512_##intrinsic##_epi64(a.v, b.v)}; \
    }
SYSTOLITH_BINARY(add, add)
SYSTOLITH_BINARY(sub, sub)
SYSTOLITH_BINARY(shlv, sllv)
SYSTOLITH_BINARY(shrv, srlv)
SYSTOLITH_BINARY(mul, mullo)
#undef SYSTOLITH_BINARY

// Low 16 bits of the product of 16-bit numbers in wider lanes.
template <int E> inline Vec<E> mul16(Vec<E> a, Vec<E> b) { return {_mm512_mullo_epi16(a.v, b.v)}; }
// Product of 15-bit numbers in lanes of 32 bits.
template <int E> inline Vec<E> mul15(Vec<E> a, Vec<E> b) { return {_mm512_madd_epi16(a.v, b.v)}; }
// Product of 32-bit numbers in lanes of 64 bits.
template <int E> inline Vec<E> mul32(Vec<E> a, Vec<E> b) { return {_mm512_mul_epu32(a.v, b.v)}; }

template <int K, int E> inline Vec<E> shl(Vec<E> a) {
    if constexpr (E == 16) return {_mm512_slli_epi16(a.v, K)};
    else if constexpr (E == 32) return {_mm512_slli_epi32(a.v, K)};
    else return {_mm512_slli_epi64(a.v, K)};
}
template <int K, int E> inline Vec<E> shr(Vec<E> a) {
    if constexpr (E == 16) return {_mm512_srli_epi16(a.v, K)};
    else if constexpr (E == 32) return {_mm512_srli_epi32(a.v, K)};
    else return {_mm512_srli_epi64(a.v, K)};
}

// Any bitwise function of three operands: bit 4a + 2b + c of TABLE.
template <int TABLE, int E> inline Vec<E> logic(Vec<E> a, Vec<E> b, Vec<E> c) {
    return {_mm512_ternarylogic_epi32(a.v, b.v, c.v, TABLE)};
}
#define SYSTOLITH_LOGIC(table, a, b, c, expression) logic<table>(a, b, c)

template <int E> inline Vec<E> sel(Bits<E> k, Vec<E> a, Vec<E> b) {
    if constexpr (E == 16) return {_mm512_mask_blend_epi16(k.m, b.v, a.v)};
    else if constexpr (E == 32) return {_mm512_mask_blend_epi32(k.m, b.v, a.v)};
    else return {_mm512_mask_blend_epi64(k.m, b.v, a.v)};
}
template <int E> inline Vec<E> unless(Bits<E> k, Vec<E> a) { return sel(k, zero<E>(), a); }
template <int E> inline Vec<E> only(Bits<E> k, Vec<E> a) {
    if constexpr (E == 16) return {_mm512_maskz_mov_epi16(k.m, a.v)};
    else if constexpr (E == 32) return {_mm512_maskz_mov_epi32(k.m, a.v)};
    else return {_mm512_maskz_mov_epi64(k.m, a.v)};
}
// a; where k, a combined with b.
template <int E> inline Vec<E> or_if(Vec<E> a, Bits<E> k, Vec<E> b) {
    if constexpr (E == 16) return or_(a, only(k, b));
    else if constexpr (E == 32) return {_mm512_mask_or_epi32(a.v, k.m, a.v, b.v)};
    else return {_mm512_mask_or_epi64(a.v, k.m, a.v, b.v)};
}
template <int E> inline Vec<E> add_if(Vec<E> a, Bits<E> k, Vec<E> b) {
    if constexpr (E == 16) return {_mm512_mask_add_epi16(a.v, k.m, a.v, b.v)};
    else if constexpr (E == 32) return {_mm512_mask_add_epi32(a.v, k.m, a.v, b.v)};
    else return {_mm512_mask_add_epi64(a.v, k.m, a.v, b.v)};
}

template <int E> inline Vec<E> xor_if(Vec<E> a, Bits<E> k, Vec<E> b) {
    if constexpr (E == 16) return xor_(a, only(k, b));
    else if constexpr (E == 32) return {_mm512_mask_xor_epi32(a.v, k.m, a.v, b.v)};
    else return {_mm512_mask_xor_epi64(a.v, k.m, a.v, b.v)};
}
template <int E> inline Vec<E> add_one_if(Vec<E> a, Bits<E> k, Vec<E> one) {
    return add_if(a, k, one);
}

// As `scalar_clz`. A one below the bits that count ends the count at MOST.
template <int WIDTH, int MOST, int E> inline Vec<E> clz(Vec<E> a) {
    static_assert(WIDTH <= E && MOST < E);
    if constexpr (E == 16) {
        // There is no such instruction for 16 bits: the odd and the even lanes, as 32 bits each.
        const __m512i end = _mm512_set1_epi32(int(uint32_t(1) << (31 - MOST)));
        const __m512i odd = _mm512_slli_epi16(a.v, 16 - WIDTH);
        const __m512i even = _mm512_slli_epi32(odd, 16);
        return {_mm512_or_si512(_mm512_lzcnt_epi32(_mm512_or_si512(even, end)),
                                _mm512_slli_epi32(_mm512_lzcnt_epi32(_mm512_or_si512(odd, end)),
                                                  16))};
    } else if constexpr (E == 32) {
        return {_mm512_lzcnt_epi32(or_(shl<32 - WIDTH>(a), bcast<32>(uint64_t(1) << (31 - MOST))).v)};
    } else {
        return {_mm512_lzcnt_epi64(or_(shl<64 - WIDTH>(a), bcast<64>(uint64_t(1) << (63 - MOST))).v)};
    }
}
// The same, if the bits above the WIDTH lowest are zeros.
template <int WIDTH, int MOST, int E> inline Vec<E> clean_clz(Vec<E> a) {
    return clz<WIDTH, MOST>(a);
}

#define SYSTOLITH_COMPARE(name, intrinsic, sign) \
    template <int E> inline Bits<E> name(Vec<E> a, Vec<E> b) { \
        if constexpr (E == 16) return {_mm512_##intrinsic##_##sign##16_mask(a.v, b.v)}; \
        else if constexpr (E == 32) return {_mm512_##intrinsic##_##sign##32_mask(a.v, b.v)}; \
        else return {_mm512_##intrinsic##_##sign##64_mask(a.v, b.v)}; \
    } \
    template <int E> inline Bits<E> name(Bits<E> k, Vec<E> a, Vec<E> b) { \
        if constexpr (E == 16) return {_mm512_mask_##intrinsic##_##sign##16_mask(k.m, a.v, b.v)}; \
        else if constexpr (E == 32) \
            return {_mm512_mask_##intrinsic##_##sign##32_mask(k.m, a.v, b.v)}; \
        else return {_mm512_mask_##intrinsic##_##sign##64_mask(k.m, a.v, b.v)}; \
    }
SYSTOLITH_COMPARE(eq, cmpeq, epi)
SYSTOLITH_COMPARE(ne, cmpneq, epi)
SYSTOLITH_COMPARE(ltu, cmplt, epu)
SYSTOLITH_COMPARE(geu, cmpge, epu)
SYSTOLITH_COMPARE(lts, cmplt, epi)
SYSTOLITH_COMPARE(ges, cmpge, epi)
SYSTOLITH_COMPARE(test, test, epi)
SYSTOLITH_COMPARE(testn, testn, epi)
#undef SYSTOLITH_COMPARE
// Whether the highest bit is one, or zero.
template <int E> inline Bits<E> negative(Vec<E> a) { return lts(a, zero<E>()); }
template <int E> inline Bits<E> positive(Vec<E> a) { return ges(a, zero<E>()); }

// `test` and `testn`; `field` is a, without the bits that are not tested, shifted to the right.
template <int E> inline Bits<E> test_field(Vec<E> a, Vec<E> mask, Vec<E>) { return test(a, mask); }
template <int E> inline Bits<E> testn_field(Vec<E> a, Vec<E> mask, Vec<E>) {
    return testn(a, mask);
}
// Whether a bit of some lane is set.
template <int E> inline bool any(Bits<E> k) { return k.m != 0; }

// Both choices between two numbers.
template <int E> struct Pair { Vec<E> first, second; };
template <int E> inline Pair<E> exchange(Bits<E> k, Vec<E> a, Vec<E> b) {
    return {sel(k, a, b), sel(k, b, a)};
}

#define SYSTOLITH_MASK(name, intrinsic) \
    template <int E> inline Bits<E> name(Bits<E> a, Bits<E> b) { \
        if constexpr (E == 16) return {_k##intrinsic##_mask32(a.m, b.m)}; \
        else if constexpr (E == 32) return {_k##intrinsic##_mask16(a.m, b.m)}; \
        else return {_k##intrinsic##_mask8(a.m, b.m)}; \
    }
SYSTOLITH_MASK(andb, and)
SYSTOLITH_MASK(orb, or)
SYSTOLITH_MASK(xorb, xor)
SYSTOLITH_MASK(andnb, andn)  // b and not a
#undef SYSTOLITH_MASK
template <int E> inline Bits<E> notb(Bits<E> a) {
    if constexpr (E == 16) return {_knot_mask32(a.m)};
    else if constexpr (E == 32) return {_knot_mask16(a.m)};
    else return {_knot_mask8(a.m)};
}

// Bits [lane, lane + LANES) of a 64-bit mask.
template <int E> inline Bits<E> bits_at(uint64_t mask, int lane) {
    return {decltype(Bits<E>::m)(mask >> lane)};
}
// The same bit, 0 or 1, in all lanes.
template <int E> inline Bits<E> same(uint64_t bit) { return {decltype(Bits<E>::m)(-bit)}; }
template <int E> inline uint64_t to_mask(Bits<E> k) { return k.m; }

template <int E, typename T> inline Vec<E> load(const T* from) {
    if constexpr (sizeof(T) * 8 == E) return {_mm512_loadu_si512(from)};
    else if constexpr (E == 32)
        return {_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from))};
    else if constexpr (sizeof(T) == 2)
        return {_mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i*)from))};
    else return {_mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i*)from))};
}
template <int E, typename T> inline void store(T* to, Bits<E> k, Vec<E> a) {
    if constexpr (sizeof(T) * 8 == E) {
        if constexpr (E == 16) _mm512_mask_storeu_epi16(to, k.m, a.v);
        else if constexpr (E == 32) _mm512_mask_storeu_epi32(to, k.m, a.v);
        else _mm512_mask_storeu_epi64(to, k.m, a.v);
    } else if constexpr (E == 32) {
        _mm256_mask_storeu_epi16(to, k.m, _mm512_cvtepi32_epi16(a.v));
    } else if constexpr (sizeof(T) == 2) {
        _mm_mask_storeu_epi16(to, k.m, _mm512_cvtepi64_epi16(a.v));
    } else {
        _mm256_mask_storeu_epi32(to, k.m, _mm512_cvtepi64_epi32(a.v));
    }
}
template <int E, typename T> inline void store(T* to, Vec<E> a) {
    if constexpr (sizeof(T) * 8 == E) _mm512_storeu_si512(to, a.v);
    else if constexpr (E == 32) _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16(a.v));
    else if constexpr (sizeof(T) == 2) _mm_storeu_si128((__m128i*)to, _mm512_cvtepi64_epi16(a.v));
    else _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi64_epi32(a.v));
}
template <int E> inline void spill(Number<E>* to, Vec<E> a) { _mm512_storeu_si512(to, a.v); }

#else

#if defined(SYSTOLITH_PORTABLE_VECTORS)
inline constexpr int BYTES = SYSTOLITH_PORTABLE_VECTORS;
#elif defined(SYSTOLITH_AVX2)
inline constexpr int BYTES = 32;
#else
inline constexpr int BYTES = 16;
#endif
template <int E> inline constexpr int LANES = BYTES * 8 / E;
template <int E> inline constexpr bool BROADCASTS = false;

// The attribute does not accept a dependent type.
using Numbers16 = uint16_t __attribute__((vector_size(BYTES)));
using Numbers32 = uint32_t __attribute__((vector_size(BYTES)));
using Numbers64 = uint64_t __attribute__((vector_size(BYTES)));
using Signed16 = int16_t __attribute__((vector_size(BYTES)));
using Signed32 = int32_t __attribute__((vector_size(BYTES)));
using Signed64 = int64_t __attribute__((vector_size(BYTES)));
template <int E> struct Native;
template <> struct Native<16> { using Type = Numbers16; using Signed = Signed16; };
template <> struct Native<32> { using Type = Numbers32; using Signed = Signed32; };
template <> struct Native<64> { using Type = Numbers64; using Signed = Signed64; };

template <int E> struct Vec { typename Native<E>::Type v; };
// ~0 for true and 0 for false; with INVERTED, the opposite. Few comparisons exist in both forms,
// and every consumer of bits accepts either form.
template <int E, bool INVERTED = false> struct Bits { typename Native<E>::Type v; };

template <int E> inline Vec<E> bcast(uint64_t x) {
    return {typename Native<E>::Type{} + Number<E>(x)};
}
template <int E> inline Vec<E> zero() { return {typename Native<E>::Type{}}; }

#define SYSTOLITH_BINARY(name, op) \
    template <int E> inline Vec<E> name(Vec<E> a, Vec<E> b) { return {a.v op b.v}; }
SYSTOLITH_BINARY(and_, &)
SYSTOLITH_BINARY(or_, |)
SYSTOLITH_BINARY(xor_, ^)
SYSTOLITH_BINARY(add, +)
SYSTOLITH_BINARY(sub, -)
SYSTOLITH_BINARY(mul, *)
#undef SYSTOLITH_BINARY

#if defined(SYSTOLITH_AVX2)
template <int E> inline __m256i raw(Vec<E> a) { return (__m256i)a.v; }
template <int E> inline Vec<E> vec(__m256i a) { return {(typename Native<E>::Type)a}; }

template <int E> inline Vec<E> mul16(Vec<E> a, Vec<E> b) {
    return vec<E>(_mm256_mullo_epi16(raw(a), raw(b)));
}
template <int E> inline Vec<E> mul15(Vec<E> a, Vec<E> b) {
    return vec<E>(_mm256_madd_epi16(raw(a), raw(b)));
}
template <int E> inline Vec<E> mul32(Vec<E> a, Vec<E> b) {
    return vec<E>(_mm256_mul_epu32(raw(a), raw(b)));
}
#else
template <int E> inline Vec<E> mul16(Vec<E> a, Vec<E> b) { return mul(a, b); }
template <int E> inline Vec<E> mul15(Vec<E> a, Vec<E> b) { return mul(a, b); }
template <int E> inline Vec<E> mul32(Vec<E> a, Vec<E> b) { return mul(a, b); }
#endif

// A shift by the width or more is undefined in C++ but defined in AVX2, which has no 16-bit shift.
#if defined(SYSTOLITH_AVX2)
#define SYSTOLITH_SHIFT_WIDE(intrinsic) \
    if constexpr (E == 32) return vec<E>(_mm256_##intrinsic##_epi32(raw(a), raw(n))); \
    if constexpr (E == 64) return vec<E>(_mm256_##intrinsic##_epi64(raw(a), raw(n)));
#else
#define SYSTOLITH_SHIFT_WIDE(intrinsic)
#endif
#define SYSTOLITH_SHIFT(name, op, intrinsic) \
    template <int E> inline Vec<E> name(Vec<E> a, Vec<E> n) { \
        SYSTOLITH_SHIFT_WIDE(intrinsic) \
        return {(a.v op (n.v & Number<E>(E - 1))) & typename Native<E>::Type(n.v < Number<E>(E))}; \
    }
SYSTOLITH_SHIFT(shlv, <<, sllv)
SYSTOLITH_SHIFT(shrv, >>, srlv)
#undef SYSTOLITH_SHIFT
#undef SYSTOLITH_SHIFT_WIDE
template <int K, int E> inline Vec<E> shl(Vec<E> a) {
    if constexpr (K >= E) return zero<E>();
    else return {a.v << K};
}
template <int K, int E> inline Vec<E> shr(Vec<E> a) {
    if constexpr (K >= E) return zero<E>();
    else return {a.v >> K};
}

#define SYSTOLITH_LOGIC(table, a, b, c, expression) expression

// a and not b. GCC splits the operator ~ off and applies De Morgan's laws, which costs instructions.
template <typename V> inline V and_not(V a, V b) {
#if defined(SYSTOLITH_AVX2)
    return V(_mm256_andnot_si256(__m256i(b), __m256i(a)));
#else
    return a & ~b;
#endif
}

template <int E, bool N> inline Bits<E, !N> notb(Bits<E, N> a) { return {a.v}; }
template <int E, bool N, bool M>
inline Bits<E, N && M> andb(Bits<E, N> a, Bits<E, M> b) {
    if constexpr (N && M) return {a.v | b.v};
    else if constexpr (N) return {and_not(b.v, a.v)};
    else if constexpr (M) return {and_not(a.v, b.v)};
    else return {a.v & b.v};
}
template <int E, bool N, bool M> inline Bits<E, N || M> orb(Bits<E, N> a, Bits<E, M> b) {
    return notb(andb(notb(a), notb(b)));
}
template <int E, bool N, bool M> inline Bits<E, N != M> xorb(Bits<E, N> a, Bits<E, M> b) {
    return {a.v ^ b.v};
}
// b and not a
template <int E, bool N, bool M> inline Bits<E, !N && M> andnb(Bits<E, N> a, Bits<E, M> b) {
    return andb(notb(a), b);
}

template <int E, bool N> inline Vec<E> sel(Bits<E, N> k, Vec<E> a, Vec<E> b) {
    if constexpr (N) return sel(notb(k), b, a);
#if defined(SYSTOLITH_AVX2)
    else return vec<E>(_mm256_blendv_epi8(raw(b), raw(a), (__m256i)k.v));
#else
    else return {(a.v & k.v) | (b.v & ~k.v)};
#endif
}
template <int E, bool N> inline Vec<E> only(Bits<E, N> k, Vec<E> a) {
    if constexpr (N) return {and_not(a.v, k.v)};
    else return {a.v & k.v};
}
template <int E, bool N> inline Vec<E> unless(Bits<E, N> k, Vec<E> a) { return only(notb(k), a); }
template <int E, bool N> inline Vec<E> or_if(Vec<E> a, Bits<E, N> k, Vec<E> b) {
    return or_(a, only(k, b));
}
template <int E, bool N> inline Vec<E> xor_if(Vec<E> a, Bits<E, N> k, Vec<E> b) {
    return xor_(a, only(k, b));
}
template <int E, bool N> inline Vec<E> add_if(Vec<E> a, Bits<E, N> k, Vec<E> b) {
    return add(a, only(k, b));
}

// Both choices between two numbers.
template <int E> struct Pair { Vec<E> first, second; };
template <int E, bool N> inline Pair<E> exchange(Bits<E, N> k, Vec<E> a, Vec<E> b) {
    const Vec<E> differ = only(k, xor_(a, b));
    return {xor_(b, differ), xor_(a, differ)};
}

// `one` is 1 in each lane. A mask is -1.
template <int E, bool N> inline Vec<E> add_one_if(Vec<E> a, Bits<E, N> k, Vec<E> one) {
    if constexpr (N) return add_if(a, k, one);
    else return {a.v - k.v};
}

template <int E> inline Bits<E> eq(Vec<E> a, Vec<E> b) {
    return {typename Native<E>::Type(a.v == b.v)};
}
template <int E> inline Bits<E, true> ne(Vec<E> a, Vec<E> b) { return notb(eq(a, b)); }
template <int E> inline Bits<E> geu(Vec<E> a, Vec<E> b) {
    return {typename Native<E>::Type(a.v >= b.v)};
}
template <int E> inline Bits<E, true> ltu(Vec<E> a, Vec<E> b) { return notb(geu(a, b)); }
// Comparisons of signed numbers: cheaper where the sign is known.
template <int E> inline Bits<E> lts(Vec<E> a, Vec<E> b) {
    using Signed = typename Native<E>::Signed;
    return {typename Native<E>::Type(Signed(a.v) < Signed(b.v))};
}
template <int E> inline Bits<E, true> ges(Vec<E> a, Vec<E> b) { return notb(lts(a, b)); }
// Whether the highest bit is one, or zero.
template <int E> inline Bits<E> negative(Vec<E> a) { return lts(a, zero<E>()); }
template <int E> inline Bits<E, true> positive(Vec<E> a) { return ges(a, zero<E>()); }
template <int E> inline Bits<E> testn(Vec<E> a, Vec<E> b) { return eq(and_(a, b), zero<E>()); }
template <int E> inline Bits<E, true> test(Vec<E> a, Vec<E> b) { return notb(testn(a, b)); }
// `test` and `testn`; `field` is a, without the bits that are not tested, shifted to the right.
template <int E> inline Bits<E, true> test_field(Vec<E>, Vec<E>, Vec<E> field) {
    return ne(field, zero<E>());
}
template <int E> inline Bits<E> testn_field(Vec<E>, Vec<E>, Vec<E> field) {
    return eq(field, zero<E>());
}
// Whether a bit of some lane is set.
template <int E, bool N> inline bool any(Bits<E, N> k) {
#if defined(SYSTOLITH_AVX2)
    return _mm256_movemask_epi8((__m256i)k.v) != (N ? -1 : 0);
#else
    const auto words = Numbers64(k.v);
    uint64_t set = 0;
    for (int i = 0; i < BYTES / 8; ++i) set |= N ? ~words[i] : words[i];
    return set != 0;
#endif
}
// The same comparisons under a mask.
#define SYSTOLITH_COMPARE(name) \
    template <int E, bool N> inline auto name(Bits<E, N> k, Vec<E> a, Vec<E> b) { \
        return andb(k, name(a, b)); \
    }
SYSTOLITH_COMPARE(eq)
SYSTOLITH_COMPARE(ne)
SYSTOLITH_COMPARE(ltu)
SYSTOLITH_COMPARE(geu)
SYSTOLITH_COMPARE(lts)
SYSTOLITH_COMPARE(ges)
SYSTOLITH_COMPARE(test)
SYSTOLITH_COMPARE(testn)
#undef SYSTOLITH_COMPARE

// Counts leading zeros in steps of PLACES and less.
template <int WIDTH, int PLACES, int E> inline void clz_steps(Vec<E> a, Vec<E>& count) {
    if constexpr (PLACES > 0) {
        constexpr uint64_t ALL = ~uint64_t(0) >> (64 - WIDTH);
        const auto empty = testn(a, bcast<E>(PLACES < WIDTH ? ALL & ~(ALL >> PLACES) : ALL));
        count = or_if(count, empty, bcast<E>(PLACES));
        clz_steps<WIDTH, PLACES / 2>(sel(empty, shl<PLACES>(a), a), count);
    }
}
// The lower of two numbers less than 2**31.
template <int E> inline Vec<E> lower(Vec<E> a, Vec<E> b) {
#if defined(SYSTOLITH_AVX2)
    if constexpr (E == 32) return vec<E>(_mm256_min_epi32(raw(a), raw(b)));
#endif
    return sel(geu(a, b), b, a);
}
// As `scalar_clz`, if the bits above the WIDTH lowest are zeros.
//
// A number of 31 bits, converted to float, has its highest one in the exponent. If the bit below the
// highest one is cleared, it is not rounded up to the next power of two. Zero has exponent 0.
template <int WIDTH, int MOST, int E> inline Vec<E> clean_clz(Vec<E> a) {
    if constexpr (E == 32 && WIDTH <= 32) {
        // Of 32 bits, the lowest is not needed: at 31, the count ends.
        constexpr int SPARE = WIDTH == 32;
        const Vec<E> word{and_not(shr<SPARE>(a).v, shr<1 + SPARE>(a).v)};
#if defined(SYSTOLITH_AVX2)
        const Vec<E> real = vec<E>((__m256i)_mm256_cvtepi32_ps(raw(word)));
#else
        using Real = float __attribute__((vector_size(BYTES)));
        const Vec<E> real{Numbers32(__builtin_convertvector(Signed32(word.v), Real))};
#endif
        return lower(sub(bcast<E>(126 + WIDTH - SPARE), shr<23>(real)), bcast<E>(MOST));
    } else {
        Vec<E> count = zero<E>();
        clz_steps<WIDTH, (MOST + 1) / 2>(a, count);
        return count;
    }
}
template <int WIDTH, int MOST, int E> inline Vec<E> clz(Vec<E> a) {
    if constexpr (WIDTH >= E) return clean_clz<WIDTH, MOST>(a);
    else return clean_clz<WIDTH, MOST>(and_(a, bcast<E>((uint64_t(1) << WIDTH) - 1)));
}

template <int E> inline typename Native<E>::Type lane_bit() {
    typename Native<E>::Type bit{};
    for (int i = 0; i < LANES<E>; ++i) bit[i] = Number<E>(uint64_t(1) << i);
    return bit;
}
#if defined(SYSTOLITH_AVX2)
// For each byte, its bits as eight bytes of 0 or ~0: a load extends them to lanes.
struct ByteMasks {
    uint64_t masks[256];
    constexpr ByteMasks() : masks() {
        for (int byte = 0; byte < 256; ++byte)
            for (int i = 0; i < 8; ++i)
                if (byte >> i & 1) masks[byte] |= uint64_t(0xff) << (8 * i);
    }
};
inline constexpr ByteMasks BYTE_MASKS;
#endif
// Bits [lane, lane + LANES) of a 64-bit mask.
template <int E> [[gnu::always_inline]] inline Bits<E> bits_at(uint64_t mask, int lane) {
#if defined(SYSTOLITH_AVX2)
    if constexpr (E == 32) {
        const __m128i bytes = _mm_loadl_epi64(
            (const __m128i*)&BYTE_MASKS.masks[uint8_t(mask >> lane)]);
        return {vec<E>(_mm256_cvtepi8_epi32(bytes)).v};
    }
    if constexpr (E == 64) {
        const __m128i bytes = _mm_loadu_si32(&BYTE_MASKS.masks[(mask >> lane) & 15]);
        return {vec<E>(_mm256_cvtepi8_epi64(bytes)).v};
    }
#endif
    const auto all = typename Native<E>::Type{} + Number<E>(mask >> lane);
    return {typename Native<E>::Type((all & lane_bit<E>()) == lane_bit<E>())};
}
// The same bit, 0 or 1, in all lanes.
template <int E> inline Bits<E> same(uint64_t bit) { return {bcast<E>(-bit).v}; }
template <int E, bool N> inline uint64_t to_mask(Bits<E, N> k) {
    uint64_t mask = 0;
#if defined(SYSTOLITH_AVX2)
    if constexpr (E == 16) {
        const __m256i bytes = _mm256_packs_epi16((__m256i)k.v, _mm256_setzero_si256());
        mask = uint32_t(_mm256_movemask_epi8(_mm256_permute4x64_epi64(bytes, 0x08)));
    } else if constexpr (E == 32) {
        mask = uint32_t(_mm256_movemask_ps((__m256)k.v));
    } else {
        mask = uint32_t(_mm256_movemask_pd((__m256d)k.v));
    }
#else
    const auto set = k.v & lane_bit<E>();
    for (int i = 0; i < LANES<E>; ++i) mask |= set[i];
#endif
    if constexpr (N) mask ^= (uint64_t(1) << LANES<E>) - 1;
    return mask;
}

template <int E, typename T> inline Vec<E> load(const T* from) {
    if constexpr (sizeof(T) * 8 == E) {
        Vec<E> a;
        std::memcpy(&a.v, from, sizeof a.v);
        return a;
    }
#if defined(SYSTOLITH_AVX2)
    else if constexpr (E == 32) {
        return vec<E>(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)));
    } else if constexpr (sizeof(T) == 2) {
        return vec<E>(_mm256_cvtepu16_epi64(_mm_loadl_epi64((const __m128i*)from)));
    } else {
        return vec<E>(_mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i*)from)));
    }
#else
    else {
        Vec<E> a;
        T part[LANES<E>];
        std::memcpy(part, from, sizeof part);
        for (int i = 0; i < LANES<E>; ++i) a.v[i] = part[i];
        return a;
    }
#endif
}
template <int E, typename T> inline void store(T* to, Vec<E> a) {
    if constexpr (sizeof(T) * 8 == E) {
        std::memcpy(to, &a.v, sizeof a.v);
    } else {
        T part[LANES<E>];
        for (int i = 0; i < LANES<E>; ++i) part[i] = T(a.v[i]);
        std::memcpy(to, part, sizeof part);
    }
}
template <int E, typename T> inline void store(T* to, Bits<E> k, Vec<E> a) {
    store(to, sel(k, a, load<E>(to)));
}
template <int E> inline void spill(Number<E>* to, Vec<E> a) { std::memcpy(to, &a.v, sizeof a.v); }

#endif

// A constant in memory, in the shortest form that an instruction takes as an operand.
template <int E> inline constexpr int COPIES = BROADCASTS<E> ? 1 : LANES<E>;
template <int E> struct alignas(COPIES<E> * E / 8) Constant {
    Number<E> numbers[COPIES<E>];
    explicit Constant(uint64_t x) {
        for (auto& number : numbers) number = Number<E>(x);
    }
};
template <int E> inline Vec<E> operand(const Constant<E>& constant) {
    if constexpr (BROADCASTS<E>) return bcast<E>(constant.numbers[0]);
    else return load<E>(constant.numbers);
}

// Requests `bytes` bytes from memory, which a later load needs.
inline void prefetch(const void* from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + i);
}

// Whether one of 64 numbers is not zero.
template <typename T> inline bool any_set(const T* numbers) {
    T any = 0;
    for (int i = 0; i < 64; ++i) any |= numbers[i];
    return any;
}

template <int E> inline constexpr uint64_t FULL = (uint64_t(1) << LANES<E>) - 1;

// Bits [lane, lane + LANES) of a 64-bit mask, moved to the lowest places.
template <int E> inline uint64_t part(uint64_t mask, int lane) { return (mask >> lane) & FULL<E>; }

// Stores the lanes `present`: mostly all of them, for which a plain store is faster.
template <int E, typename T> inline void store(T* to, uint64_t present, Vec<E> a) {
    if (present == FULL<E>) store(to, a);
    else store(to, bits_at<E>(present, 0), a);
}

// Replaces the bits of `mask` from `lane` on by `value`, where `keep` is set.
template <typename B> inline void put_at(uint64_t& mask, int lane, uint64_t keep, B value) {
    mask = (mask & ~(keep << lane)) | ((to_mask(value) & keep) << lane);
}

// Entry `address` of each lane's memory. `base` is entry 0 of the first lane; the entries of a lane
// are `stride` apart. Lanes outside `lanes` read as zero.
template <int E, typename T>
inline Vec<E> gather(const T* base, size_t stride, Vec<E> address, uint64_t lanes) {
    Number<E> where[LANES<E>], value[LANES<E>] = {};
    spill(where, address);
    for (; lanes; lanes &= lanes - 1) {
        const int i = __builtin_ctzll(lanes);
        value[i] = Number<E>(base[where[i] * stride + i]);
    }
    return load<E>(value);
}
// Entry `address` of a table that all lanes share; addresses must lie within it.
template <int E, typename T> inline Vec<E> lookup(const T* table, Vec<E> address) {
#ifdef SYSTOLITH_AVX512
    if constexpr (E == 32 && sizeof(T) == 4)
        return {_mm512_i32gather_epi32(address.v, table, 4)};
    else if constexpr (E == 64 && sizeof(T) == 4)
        return {_mm512_cvtepu32_epi64(_mm512_i64gather_epi32(address.v, table, 4))};
    else if constexpr (E == 64)
        return {_mm512_i64gather_epi64(address.v, table, 8)};
#elif defined(SYSTOLITH_AVX2)
    if constexpr (E == 32 && sizeof(T) == 4)
        return vec<E>(_mm256_i32gather_epi32((const int*)table, raw(address), 4));
    else if constexpr (E == 64 && sizeof(T) == 8)
        return vec<E>(_mm256_i64gather_epi64((const long long*)table, raw(address), 8));
#endif
    Number<E> numbers[LANES<E>];
    spill(numbers, address);
    for (auto& number : numbers) number = Number<E>(table[number]);
    return load<E>(numbers);
}
// Stores `data` at entry `address` of each lane's memory, in lanes of `lanes`.
template <int E, typename T>
inline void scatter(T* base, size_t stride, Vec<E> address, uint64_t lanes, Vec<E> data) {
    Number<E> where[LANES<E>], value[LANES<E>];
    spill(where, address);
    spill(value, data);
    for (; lanes; lanes &= lanes - 1) {
        const int i = __builtin_ctzll(lanes);
        base[where[i] * stride + i] = T(value[i]);
    }
}
// The same, but only the bits under `mask` are written.
template <int E, typename T>
inline void scatter(T* base, size_t stride, Vec<E> address, uint64_t lanes, Vec<E> data,
                    Vec<E> mask) {
    Number<E> where[LANES<E>], value[LANES<E>], taken[LANES<E>];
    spill(where, address);
    spill(value, data);
    spill(taken, mask);
    for (; lanes; lanes &= lanes - 1) {
        const int i = __builtin_ctzll(lanes);
        T& entry = base[where[i] * stride + i];
        entry = T((entry & ~taken[i]) | (value[i] & taken[i]));
    }
}

}  // namespace SYSTOLITH_BACKEND
}  // namespace systolith::lanes
