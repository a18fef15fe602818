// Requests to the server. The key is kept in memory alone, until the page is closed or reloaded.

const dialog = document.getElementById("key-dialog");
const field = document.getElementById("key");
const ATTEMPTS = 5;

let key = "";
let prompting = null;

/** Prompts for a key; resolves to whether there is a new one. */
function promptForKey() {
  prompting ??= new Promise((resolve) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      prompting = null;
      const given = field.value.trim();
      field.value = "";
      if (given) key = given;
      resolve(Boolean(given));
    }, { once: true });
    dialog.showModal();
  });
  return prompting;
}

const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/**
 * Detects in a file, any number of classes for each object; resolves to the answer and the seconds
 * that it took. Throws an Error with the server's message.
 */
export async function detect(file, minScore) {
  const began = performance.now();
  for (let attempt = 1; ; attempt += 1) {
    const sent = key;
    let response;
    try {
      response = await fetch(`/detect?min_score=${minScore}&classes_per_object=all`, {
        method: "POST",
        body: file,
        headers: { "Content-Type": "application/octet-stream", ...(sent && { "X-API-Key": sent }) },
      });
    } catch {
      throw new Error("The server does not respond.");
    }
    const answer = await response.json().catch(() => ({ error: response.statusText }));
    if (response.ok) return { answer, seconds: (performance.now() - began) / 1000 };
    if (response.status === 401) {
      // Another request may have prompted for the key meanwhile.
      if (key !== sent || await promptForKey()) continue;
    } else if (response.status === 503 && attempt < ATTEMPTS) {
      await wait(Number(response.headers.get("Retry-After")) || 1);
      continue;
    }
    throw new Error(answer.error || `The server responded with status ${response.status}.`);
  }
}
