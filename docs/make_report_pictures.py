"""Take docs/report*.png: the page of a demo in headless Chromium. Run from the project's root;
needs chromium.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

SHOTS = {"report-desktop": (1280, 900, None), "report-phone": (390, 844, None), "report": (1280, 900, 1500)}


def take(page: Page, path: Path, height: int | None) -> None:
    """The whole page, or its upper part, in few colours."""
    page.screenshot(path=path, full_page=True)
    picture = Image.open(path).convert("RGB")
    picture = picture.crop((0, 0, picture.width, height or picture.height))
    picture.quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)


with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
    command = [sys.executable, "-m", "hessian_surgery", "demo", "--out", "demo"]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
    for name, (width, height, cut) in SHOTS.items():
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto((Path(folder) / "demo/report.html").as_uri())
        take(page, Path("docs") / f"{name}.png", cut)
    browser.close()
