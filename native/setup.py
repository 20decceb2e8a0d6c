"""The build of kafka_eos_native: one C file for the stable ABI of Python 3.11 and later."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "kafka_eos_native",
            ["kafka_eos_native.c"],
            py_limited_api=True,
            extra_compile_args=["-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden"],
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
