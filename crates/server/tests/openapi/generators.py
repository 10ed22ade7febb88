"""A generator of clients makes one class each of Message, Grant and Postpone, and with --all so do two others.

    generators.py [--all] TOOLS OPENAPI.JSON WORK
"""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

CLASSES = ("Message", "Grant", "Postpone", "Enqueue", "Problem", "Queue")

tools, description, work = (pathlib.Path(argument) for argument in sys.argv[-3:])
spec = json.loads(description.read_text())


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=work)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{said}")
    return said


def only_once(generator: str, text: str, pattern: str) -> None:
    """Each class is defined once, and no second form of it has a number."""
    for name in CLASSES:
        found = re.findall(pattern.replace("NAME", name), text, re.MULTILINE)
        if len(found) != 1:
            sys.exit(f"{generator}: {name} is defined {len(found)} times")
        forms = re.findall(pattern.replace("NAME", name + r"(?:Type)?\d+"), text, re.MULTILINE)
        if forms:
            sys.exit(f"{generator}: {name} has the forms {forms}")
    print(f"ok      {generator}: one class each of {', '.join(CLASSES)}")


def example(operation_path: str, method: str, status: str) -> object:
    answer = spec["paths"][operation_path][method]["responses"][status]
    return answer["content"]["application/json"]["example"]


MESSAGE = example("/v1/messages/{id}", "get", "200")
GRANT = example("/v1/queues/{queue}/reserve", "post", "200")["messages"][0]
POSTPONE = spec["paths"]["/v1/messages/{id}"]["patch"]["requestBody"]["content"]["application/json"]["example"]


def python_client() -> None:
    said = run(tools / "py/bin/openapi-python-client", "generate", "--path", description, "--meta", "none",
               "--output-path", "python_client", "--overwrite")
    # NDJSON is no content type that it knows; an operation that has JSON, too, is made all the same.
    missing = [line for line in said.splitlines() if re.search(r"(Endpoint|Schema).*(will not be generated|is invalid)|ERROR", line)]
    if missing:
        sys.exit(f"openapi-python-client left something out:\n{said}")
    text = "\n".join(file.read_text() for file in sorted((work / "python_client/models").glob("*.py")))
    only_once("openapi-python-client", text, r"^class NAME(?:\(.*\))?:")
    operations = sum(len([m for m in item if m != "parameters"]) for item in spec["paths"].values())
    made = [file for file in (work / "python_client/api").glob("*/*.py") if file.name != "__init__.py"]
    if len(made) != operations:
        sys.exit(f"openapi-python-client made {len(made)} of {operations} operations:\n{said}")
    sys.path.insert(0, str(work))
    from python_client import models  # made a moment ago

    for model, value in ((models.Message, MESSAGE), (models.Grant, GRANT), (models.Postpone, POSTPONE)):
        later = {**value, "of_a_later_version": 1} if model is not models.Postpone else value
        again = model.from_dict(dict(later)).to_dict()
        # It reads instants, and writes them its own way.
        theirs = json.dumps(later).replace(".000Z", "+00:00").replace("12Z", "12000+00:00")
        if again != json.loads(theirs):
            sys.exit(f"openapi-python-client: {model.__name__} does not come back: {again} is not {later}")


def pydantic() -> None:
    run(tools / "py/bin/datamodel-codegen", "--input", description, "--input-file-type", "openapi",
        "--output", "pydantic_models.py", "--output-model-type", "pydantic_v2.BaseModel", "--target-python-version", "3.11")
    file = work / "pydantic_models.py"
    only_once("datamodel-code-generator", file.read_text(), r"^class NAME\(.*\):")
    module_spec = importlib.util.spec_from_file_location("pydantic_models", file)
    models = importlib.util.module_from_spec(module_spec)
    sys.modules["pydantic_models"] = models
    module_spec.loader.exec_module(models)
    for model, value in ((models.Message, MESSAGE), (models.Grant, GRANT), (models.Postpone, POSTPONE)):
        later = {**value, "of_a_later_version": 1} if model is not models.Postpone else value
        model.model_validate(later)


def typescript() -> None:
    run("node", tools / "js/node_modules/openapi-typescript/bin/cli.js", description, "-o", work / "api.ts")
    only_once("openapi-typescript", (work / "api.ts").read_text(), r"^        NAME: ")
    (work / "use.ts").write_text(
        'import type { components, paths } from "./api";\n'
        'type Schemas = components["schemas"];\n'
        f"export const message: Schemas[\"Message\"] = {json.dumps(MESSAGE)};\n"
        f"export const grant: Schemas[\"Grant\"] = {json.dumps(GRANT)};\n"
        f"export const postpone: Schemas[\"Postpone\"] = {json.dumps(POSTPONE)};\n"
        'export type Accepted = paths["/v1/queues/{queue}/messages"]["post"]["responses"][201];\n'
    )
    run("node", tools / "js/node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck", work / "use.ts")


python_client()
if "--all" in sys.argv:
    pydantic()
    typescript()
