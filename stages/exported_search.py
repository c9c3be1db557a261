"""Find tools for a request with exported models. Needs sentence-transformers, transformers and faiss, nothing else.

    python search.py "will I get wet on my way home" -k 3

It lies beside the models in the folder that `cohyde export` wrote. To use it in a program, load the models once.
"""

import argparse
import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def chat(prompt: dict[str, Any], request: str) -> list[dict[str, str]]:
    """The messages that the rewriter is given: instruction, examples as earlier turns, the request."""

    def asked(text: str) -> dict[str, str]:
        return {"role": "user", "content": prompt["user"].replace("{query}", text)}

    messages = [{"role": "system", "content": prompt["system"]}] if prompt["system"] else []
    for example in prompt["examples"]:
        messages += [asked(example["query"]), {"role": "assistant", "content": example["answer"]}]
    return [*messages, asked(request)]


def rewrite(recipe: dict[str, Any], request: str) -> str:
    """The rewriter's description of the tools that would fulfil the request; empty if it wrote none."""
    import torch
    from clean import clean
    from transformers import AutoModelForCausalLM, AutoTokenizer

    how, settings = recipe["describe"], recipe["rewriter"]
    dtype = {"float32": torch.float32, "bf16": torch.bfloat16}[settings["precision"]]
    tokenizer = AutoTokenizer.from_pretrained(HERE / "rewriter", local_files_only=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        HERE / "rewriter", dtype=dtype, use_safetensors=True, local_files_only=True
    )
    model.eval()
    text = tokenizer.apply_chat_template(
        chat(recipe["prompt"], request), tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    inputs = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    length, most = inputs["input_ids"].shape[1], settings["max_prompt_tokens"]
    if length > most:
        sys.exit(f"the prompt has {length} tokens, of at most {most}: shorten the request")
    # Every setting is said: what the model's generation_config.json holds is not what it was trained with.
    sampling = {"do_sample": False}
    if how["temperature"] > 0:
        sampling = {"do_sample": True} | {name: how[name] for name in ("temperature", "top_p", "top_k")}
    stops = model.generation_config.eos_token_id
    stops = {*(stops if isinstance(stops, list) else [stops]), tokenizer.eos_token_id} - {None}
    output = model.generate(
        **inputs,
        **sampling,
        num_beams=1,
        max_new_tokens=how["max_new_tokens"],
        repetition_penalty=how["repetition_penalty"],
        eos_token_id=sorted(stops),
        pad_token_id=min(stops),
    )
    return str(clean(tokenizer.decode(output[0, length:], skip_special_tokens=True)))


def vector_of(encoder: Any, search: dict[str, Any], request: str, description: str) -> Any:
    """What the index is searched with: a float32 vector of length 1, as ``search.mode`` of the recipe says."""
    import numpy as np

    texts = {"query": request, "description": description, "concatenated": f"{request} {description}"}
    if search["mode"] in texts:
        return encoder.encode_query(texts[search["mode"]], normalize_embeddings=True)
    one, other = (encoder.encode_query(text, normalize_embeddings=True) for text in (request, description))
    mean = search["query_weight"] * one + (1 - search["query_weight"]) * other
    return (mean / np.linalg.norm(mean)).astype(np.float32)


def nearest(vector: Any, k: int) -> list[tuple[int, float]]:
    """Positions in the catalogue and inner products, best first; of equal ones the first in the catalogue."""
    import faiss
    import numpy as np

    index = faiss.read_index(str(HERE / "index" / "catalog.faiss"))
    _, found = index.search(vector[None], min(index.ntotal, 2 * k + 16))
    vectors = np.stack([index.reconstruct(int(position)) for position in found[0]]).astype(np.float64)
    scores = np.einsum("d,cd->c", vector.astype(np.float64), vectors).astype(np.float32)
    order = np.lexsort((found[0], -scores))[:k]
    return [(int(found[0][place]), float(scores[place])) for place in order]


def main() -> None:
    """Search once, and print the tools."""
    parser = argparse.ArgumentParser(description="Find tools for a request.")
    parser.add_argument("request", help="in everyday words")
    parser.add_argument("-k", type=int, default=5, help="how many tools (5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if not given.request.strip() or given.k < 1:
        parser.error("give a request that is not empty, and -k of at least 1")

    from sentence_transformers import SentenceTransformer

    request = " ".join(unicodedata.normalize("NFC", given.request).split())
    recipe = json.loads((HERE / "export.json").read_text(encoding="utf-8"))
    catalog = [json.loads(line) for line in (HERE / "catalog.jsonl").read_text(encoding="utf-8").split("\n") if line]
    encoder = SentenceTransformer(str(HERE / "encoder"), local_files_only=True, model_kwargs={"use_safetensors": True})
    description = "" if recipe["search"]["mode"] == "query" else rewrite(recipe, request)
    vector = vector_of(encoder, recipe["search"], request, description or request)
    found = [(catalog[position], score) for position, score in nearest(vector, given.k)]
    if given.json:
        tools = [{"id": tool["id"], "score": score, "rank": rank} for rank, (tool, score) in enumerate(found, start=1)]
        print(json.dumps({"query": request, "description": description, "tools": tools}, ensure_ascii=False))
        return
    print(description or "(no description: searched with the request)", end="\n\n")
    for rank, (tool, score) in enumerate(found, start=1):
        print(f"{rank:3}  {score:.3f}  {tool['id']}  {tool.get('title', '')} {tool.get('api_name', '')}".rstrip())


if __name__ == "__main__":
    main()
