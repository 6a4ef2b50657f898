// Completion of YAML from a JSON schema: pure functions of the text and the place of the cursor.
// Block style only: within braces and brackets there are no proposals.

const KEY = /^((?:[A-Za-z_][\w./-]*)|"[^"]*"):(?:\s+(.*))?$/;
const WORD = /^[\w./*-]*$/;
const MAX_PROPOSALS = 60;

/** A line as columns: its dashes, and its key and value. Null for blank lines and comments. */
function parsedLine(text) {
  const body = text.replace(/\s+#.*$/, "").trimEnd();
  if (!body.trim() || body.trimStart().startsWith("#")) return null;
  const dashes = [];
  let column = body.length - body.trimStart().length;
  while (body[column] === "-" && (body[column + 1] === " " || column + 1 === body.length)) {
    dashes.push(column);
    column += 1;
    while (body[column] === " ") column += 1;
  }
  const match = KEY.exec(body.slice(column));
  return {
    dashes, column, key: match ? match[1].replaceAll('"', "") : null,
    value: match ? (match[2] ?? "").replace(/^["']|["']$/g, "") : null,
  };
}

/** The lines of the document around a line, and the index of the first one. */
function documentAround(lines, index) {
  let first = index;
  while (first > 0 && !/^---(\s|$)/.test(lines[first])) first -= 1;
  let end = index + 1;
  while (end < lines.length && !/^---(\s|$)/.test(lines[end])) end += 1;
  return { first, parsed: lines.slice(first, end).map((line) => (/^---/.test(line) ? null : parsedLine(line))) };
}

/** Key and value of the mapping that has a key in `column` of line `index`. */
function siblings(parsed, index, column) {
  const found = new Map();
  const visit = (from, step) => {
    for (let i = from; i >= 0 && i < parsed.length; i += step) {
      const line = parsed[i];
      if (line === null) continue;
      const starts = line.dashes.length && line.column === column;
      if (step > 0 && i !== index && (starts || (line.dashes[0] ?? line.column) < column)) return;
      if (line.column < column) return;
      if (line.column === column && line.key !== null && i !== index) found.set(line.key, line.value);
      if (step < 0 && starts) return;
    }
  };
  const own = parsed[index];
  if (!(own && own.dashes.length && own.column === column)) visit(index - 1, -1);
  visit(index + 1, 1);
  return found;
}

/** The keys above the cursor, outermost first; "[]" is an item of a list. */
function pathTo(parsed, index, own) {
  const path = [];
  let level = own.column;
  let inItem = false;
  const climb = (dashes) => {
    for (const dash of [...dashes].reverse()) {
      path.unshift({ key: "[]" });
      level = dash;
      inItem = true;
    }
  };
  climb(own.dashes);
  for (let i = index - 1; i >= 0; i -= 1) {
    const line = parsed[i];
    if (line === null) continue;
    if (!inItem && line.column === level && line.dashes.length) {
      climb(line.dashes);
    } else if (line.key !== null && (inItem ? line.column <= level : line.column < level)
      && !(inItem && line.dashes.includes(level))) {
      path.unshift({ key: line.key, siblings: siblings(parsed, i, line.column) });
      level = line.column;
      inItem = false;
      climb(line.dashes);
    }
    if (level === 0 && !inItem) break;
  }
  return path;
}

/** Where the cursor is: path, kind of the document, what is typed, and the keys beside it. */
export function place(text, offset) {
  const lines = text.split("\n");
  const before = text.slice(0, offset).split("\n");
  const index = before.length - 1;
  const typed = before[index];
  if (/^\s*#/.test(typed) || /[{}[\]]/.test(typed)) return null;
  const { first, parsed } = documentAround(lines, index);
  const head = /^(\s*(?:- +)*)(.*)$/.exec(typed);
  const dashes = [...head[1]].flatMap((char, column) => (char === "-" ? [column] : []));
  const own = { dashes, column: head[1].length };
  const at = index - first;
  // An unfinished line has no key yet, but its column counts.
  parsed[at] = { ...own, key: null, value: null };
  const value = KEY.exec(head[2].endsWith(":") ? "" : head[2]);
  const path = pathTo(parsed, at, own);
  const beside = siblings(parsed, at, own.column);
  const kind = parsed.find((line) => line && line.column === 0 && line.key === "kind")?.value ?? "";
  if (value && head[2].includes(": ")) {
    path.push({ key: value[1].replaceAll('"', ""), siblings: beside });
    return { path, kind, beside, prefix: value[2] ?? "", column: own.column, mode: "value" };
  }
  if (!WORD.test(head[2])) return null;
  return { path, kind, beside, prefix: head[2], column: own.column, mode: "key" };
}

function resolved(schema, node) {
  let found = node;
  while (found?.$ref) found = schema.$defs[found.$ref.split("/").at(-1)];
  if (found?.anyOf) {
    const real = found.anyOf.find((one) => one.type !== "null");
    return resolved(schema, real);
  }
  return found;
}

/** The schema at a path; undefined if the schema has none. */
function schemaAt(schema, kind, path) {
  let node = schema.$defs[kind];
  for (const { key, siblings: beside } of path) {
    node = resolved(schema, node);
    if (!node) return undefined;
    if (key === "[]") {
      node = node.items;
      continue;
    }
    const rule = (node.allOf ?? []).find(({ if: test }) => (
      Object.entries(test.properties).every(([name, { const: wanted }]) => beside?.get(name) === wanted)
    ));
    node = rule?.then.properties[key] ?? node.properties?.[key]
      ?? (typeof node.additionalProperties === "object" ? node.additionalProperties : undefined);
  }
  return node;
}

function typeText(schema, node) {
  const real = resolved(schema, node) ?? {};
  if (real.enum) return real.enum.join(" | ");
  if (real.type === "array") return "list";
  if (real.type === "object") return "mapping";
  return real.type ?? "";
}

function keyProposals(schema, node, found) {
  const real = resolved(schema, node);
  const list = real?.type === "array";
  const owner = list ? resolved(schema, real.items) : real;
  return Object.entries(owner?.properties ?? {})
    .filter(([name]) => !found.beside.has(name))
    .map(([name, field]) => {
      const type = typeText(schema, field);
      const nested = type === "list" || type === "mapping";
      return {
        label: name, type, description: field.description ?? "",
        insert: `${list ? "- " : ""}${name}:${nested ? "" : " "}`,
      };
    });
}

function valueProposals(schema, node) {
  const real = resolved(schema, node) ?? {};
  const values = [
    ...(real.enum ?? []), ...(real.const !== undefined ? [real.const] : []),
    ...(real.type === "boolean" ? [true, false] : []), ...(node?.examples ?? real.examples ?? []),
  ];
  const shown = node?.default ?? real.default;
  if (shown !== undefined && shown !== null && typeof shown !== "object" && shown !== "") values.push(shown);
  return [...new Set(values.map(String))].map((label) => ({
    label, type: label === String(shown) ? "default" : "", description: node?.description ?? "", insert: label,
  }));
}

/** What may follow at the cursor: label, type, description, and the text to insert for `prefix`. */
export function proposals(schema, text, offset) {
  const found = place(text, offset);
  if (!found) return { prefix: "", items: [] };
  const known = schema.$defs[found.kind];
  let items;
  if (!known || (found.path.length === 1 && ["kind", "apiVersion"].includes(found.path[0].key) && found.mode === "value")) {
    items = headProposals(schema, found);
  } else {
    const node = schemaAt(schema, found.kind, found.path);
    items = found.mode === "key" ? keyProposals(schema, node, found) : valueProposals(schema, node);
  }
  const wanted = found.prefix.toLowerCase();
  const starts = items.filter(({ label }) => label.toLowerCase().startsWith(wanted));
  const within = items.filter(({ label }) => label.toLowerCase().indexOf(wanted) > 0);
  return { prefix: found.prefix, items: [...starts, ...within].slice(0, MAX_PROPOSALS) };
}

/** Proposals for apiVersion and kind, from all documents that the schema knows. */
function headProposals(schema, found) {
  const roots = (schema.oneOf ?? [schema]).map((one) => schema.$defs[one.$ref.split("/").at(-1)]);
  if (found.mode === "key") {
    return roots.flatMap((root) => {
      const { apiVersion, kind } = root.properties;
      const description = root.description ?? "";
      return [{
        label: `apiVersion, kind: ${kind.const}`, type: "document", description,
        insert: `apiVersion: ${apiVersion.const}\nkind: ${kind.const}\n`,
      }];
    });
  }
  const key = found.path.at(-1).key;
  return roots.map((root) => root.properties[key]?.const).filter(Boolean)
    .map((label) => ({ label, type: "", description: "", insert: label }));
}
