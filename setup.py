"""Build the two extension modules; everything else about the package is in pyproject.toml."""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

if TYPE_CHECKING:
    from collections.abc import Sequence

NATIVE = "pinferry._native"
BRIDGE = "pinferry._torch"

# -g0: the -g that Python itself was built with would make the modules ten times as large.
COMPILE_ARGS = ["-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread"]
if os.environ.get("PINFERRY_WERROR") == "1":
    COMPILE_ARGS.append("-Werror")

# The first PyTorch whose own extensions are compiled as C++20, because its headers need it.
FIRST_CXX20_TORCH = (2, 12)


def extension(name: str, folder: str) -> Extension:
    """Return the extension `name`, made of every C++ file in `csrc/folder`."""
    sources, headers = (
        sorted(str(path) for path in Path("csrc", folder).glob(pattern))
        for pattern in ("*.cpp", "*.hpp")
    )
    return Extension(name, sources, depends=headers, language="c++")


def system_includes(*folders: str) -> list[str]:
    """Return the options that find headers in `folders` and keep warnings about them quiet."""
    return [option for folder in folders for option in ("-isystem", folder)]


def pybind11_include() -> str:
    """Return the folder of pybind11's headers: its own package's, or else PyTorch's copy."""
    for package in ("pybind11", "torch"):
        spec = importlib.util.find_spec(package)
        for location in (spec and spec.submodule_search_locations) or ():
            folder = Path(location, "include")
            if (folder / "pybind11" / "pybind11.h").is_file():
                return str(folder)
    raise SystemExit(
        f"{NATIVE} needs the headers of pybind11, and neither pybind11 nor PyTorch is installed. "
        "Run: python -m pip install pybind11"
    )


def configure_native(native: Extension) -> None:
    """Complete the core: pybind11's headers, no PyTorch, no CUDA."""
    native.extra_compile_args = [
        *COMPILE_ARGS,
        "-std=c++17",
        *system_includes(pybind11_include()),
    ]
    native.extra_link_args = ["-pthread", "-ldl"]


def configure_bridge(bridge: Extension) -> bool:
    """Complete the bridge for the PyTorch that can be imported; False where none can."""
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError as error:
        print(f"{BRIDGE} is not built now ({error}); it will be at its first use.")  # noqa: T201
        return False
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    bridge.extra_compile_args = [
        *COMPILE_ARGS,
        "-std=c++20" if (major, minor) >= FIRST_CXX20_TORCH else "-std=c++17",
        *system_includes(*cpp_extension.include_paths()),
    ]
    bridge.define_macros = [
        ("PINFERRY_TORCH_VERSION", f'"{torch.__version__}"'),
        ("TORCH_EXTENSION_NAME", BRIDGE.rpartition(".")[2]),
        ("_GLIBCXX_USE_CXX11_ABI", str(int(torch._C._GLIBCXX_USE_CXX11_ABI))),  # noqa: SLF001
    ]
    # No run path: `import torch` has loaded these libraries before the bridge is imported. Only
    # those that the bridge calls into are kept.
    bridge.extra_link_args = [
        "-Wl,--as-needed",
        *(f"-L{folder}" for folder in cpp_extension.library_paths()),
        "-lc10",
        "-ltorch_cpu",
        "-ltorch_python",
    ]
    return True


def is_stale(object_file: Path) -> bool:
    """Return whether a file that went into `object_file` is newer, by the compiler's own list."""
    dependencies = object_file.with_suffix(".d")
    if not (object_file.is_file() and dependencies.is_file()):
        return True
    built = object_file.stat().st_mtime
    inputs = dependencies.read_text().replace("\\\n", " ").partition(":")[2].split()
    return any(not Path(file).is_file() or Path(file).stat().st_mtime > built for file in inputs)


class BuildExtensions(build_ext):
    """Compile only stale files, on every core, into build/objects.

    Setuptools compiles all files of an extension if one has changed, one after the other, and
    throws the objects of an editable install away.
    """

    def finalize_options(self) -> None:
        """Drop the bridge where PyTorch cannot be imported, and complete what is left."""
        super().finalize_options()
        # build_extensions decides what is stale. Setuptools would look neither at the options nor
        # at the PyTorch that an extension was built with.
        self.force = True
        kept = []
        for module in self.extensions:
            if module.name == NATIVE:
                configure_native(module)
                kept.append(module)
            elif configure_bridge(module):
                kept.append(module)
        self.extensions = kept

    def build_extensions(self) -> None:
        """Build each extension with the compiling step replaced."""
        compile_files = self.compiler.compile
        workers = int(os.environ.get("MAX_JOBS", len(os.sched_getaffinity(0))))

        def compile_stale(sources: Sequence[str], **options: Any) -> list[str]:
            del options["output_dir"], options["depends"]
            options["extra_postargs"] = [*options["extra_postargs"], "-MD"]
            # Objects made with other options, another compiler or another PyTorch stay apart.
            command = repr([self.compiler.compiler_so_cxx, sorted(options.items())])
            objects = str(Path("build", "objects", sha256(command.encode()).hexdigest()[:16]))

            def compile_one(source: str) -> str:
                [name] = map(str, self.compiler.object_filenames([source], output_dir=objects))
                if is_stale(Path(name)):
                    compile_files([source], output_dir=objects, **options)
                return name

            with ThreadPoolExecutor(workers) as pool:
                return list(pool.map(compile_one, sources))

        self.compiler.compile = compile_stale
        super().build_extensions()


setup(
    ext_modules=[extension(NATIVE, "native"), extension(BRIDGE, "bridge")],
    cmdclass={"build_ext": BuildExtensions},
)
