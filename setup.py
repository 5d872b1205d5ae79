"""The one step of the build that pyproject.toml cannot say: the presets of conf/ go into the package, as maxent_grpo/conf.

In a checkout, also one installed with `pip install -e .`, conf/ is read where it stands.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CONF = Path("conf")
INSTALLED = Path("maxent_grpo") / "conf"


class WithPresets(build_py):
    """Copies conf/ beside the modules that a wheel is made of."""

    def run(self) -> None:
        """Build the modules, then place the presets among them."""
        super().run()
        for source, target in self._presets():
            self.mkpath(str(target.parent))
            self.copy_file(str(source), str(target), preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Everything that the build writes."""
        return [*super().get_outputs(include_bytecode), *(str(target) for _, target in self._presets())]

    def _presets(self) -> list[tuple[Path, Path]]:
        """Each file of conf/ with its place in the build; none for an editable install."""
        if self.editable_mode:
            return []
        files = sorted(CONF.rglob("*.yaml"))
        return [(file, Path(self.build_lib) / INSTALLED / file.relative_to(CONF)) for file in files]


setup(cmdclass={"build_py": WithPresets})
