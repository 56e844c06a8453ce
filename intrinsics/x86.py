"""x86: products of bytes and of bfloat16 in AVX-512 registers."""

from metasched.script import tir as T


@T.prim_func
def dot_16x4_u8i8i32_desc(
    A: T.Buffer((4,), "uint8", offset_factor=1),
    B: T.Buffer((16, 4), "int8", offset_factor=1),
    C: T.Buffer((16,), "int32", offset_factor=1),
) -> None:
    with T.block("root"):
        T.reads(C[0:16], A[0:4], B[0:16, 0:4])
        T.writes(C[0:16])
        for i in range(16):
            for k in range(4):
                with T.block("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(B[vi, vk], "int32")


@T.prim_func
def dot_16x4_u8i8i32_vnni(
    A: T.Buffer((4,), "uint8", offset_factor=1),
    B: T.Buffer((16, 4), "int8", offset_factor=1),
    C: T.Buffer((16,), "int32", offset_factor=1),
) -> None:
    with T.block("root"):
        T.reads(C[0:16], A[0:4], B[0:16, 0:4])
        T.writes(C[0:16])
        A_u8x4 = A.vload([0], "uint8x4")
        A_i32 = T.reinterpret(A_u8x4, dtype="int32")
        A_brdcst = T.broadcast(A_i32, 16)
        A_u8x64 = T.reinterpret(A_brdcst, dtype="uint8x64")
        B_i8x64 = B.vload([0, 0], dtype="int8x64")
        C_i32x16 = C.vload([0], dtype="int32x16")
        C[T.ramp(T.int32(0), 1, 16)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"),
            C_i32x16,
            A_u8x64,
            B_i8x64,
            dtype="int32x16",
        )


@T.prim_func
def dot_16x2_bf16bf16f32_desc(
    A: T.Buffer((2,), "bfloat16", offset_factor=1),
    B: T.Buffer((16, 2), "bfloat16", offset_factor=1),
    C: T.Buffer((16,), "float32", offset_factor=1),
) -> None:
    with T.block("root"):
        T.reads(C[0:16], A[0:2], B[0:16, 0:2])
        T.writes(C[0:16])
        for i in range(16):
            for k in range(2):
                with T.block("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.cast(A[vk], "float32") * T.cast(B[vi, vk], "float32")


@T.prim_func
def dot_16x2_bf16bf16f32_avx512(
    A: T.Buffer((2,), "bfloat16", offset_factor=1),
    B: T.Buffer((16, 2), "bfloat16", offset_factor=1),
    C: T.Buffer((16,), "float32", offset_factor=1),
) -> None:
    with T.block("root"):
        T.reads(C[0:16], A[0:2], B[0:16, 0:2])
        T.writes(C[0:16])
        A_pair = T.reinterpret(A.vload([0], "bfloat16x2"), dtype="int32")
        A_bf16x32 = T.reinterpret(T.broadcast(A_pair, 16), dtype="bfloat16x32")
        B_bf16x32 = B.vload([0, 0], dtype="bfloat16x32")
        C_f32x16 = C.vload([0], dtype="float32x16")
        C[T.ramp(T.int32(0), 1, 16)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512bf16.dpbf16ps.512"),
            C_f32x16,
            A_bf16x32,
            B_bf16x32,
            dtype="float32x16",
        )


INTRINSICS = {
    "x86.avx512bf16.dot_16x2_bf16bf16f32": (dot_16x2_bf16bf16f32_desc, dot_16x2_bf16bf16f32_avx512),
    "x86.vnni.dot_16x4_u8i8i32": (dot_16x4_u8i8i32_desc, dot_16x4_u8i8i32_vnni),
}
