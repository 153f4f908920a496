//! A small Python library that tests install without a network.

/// Prints a wheel with a module `greeting` and a program `greet` in base64.
pub const WHEEL: &str = r#"
import base64, io, zipfile
info = "greeting-1.0.dist-info"
files = {
    "greeting.py": "WORD = 'hello from a library'\ndef main():\n    print(WORD)\n",
    f"{info}/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{info}/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
}
files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
memory = io.BytesIO()
with zipfile.ZipFile(memory, "w") as archive:
    for path, content in files.items():
        archive.writestr(path, content)
print(base64.b64encode(memory.getvalue()).decode())
"#;
