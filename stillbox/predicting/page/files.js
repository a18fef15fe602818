// Sources of images: file choosers, drop, paste, the camera.

const NAMES = /\.(jpe?g|png|webp|gif|bmp)$/i;
const isImage = (file) => file.type.startsWith("image/") || NAMES.test(file.name);
const byName = (a, b) => (a.webkitRelativePath || a.name).localeCompare(b.webkitRelativePath || b.name);

/** Calls `take` with arrays of image files from all sources. */
export function listen(take) {
  const offer = (files) => take([...files].filter(isImage).sort(byName));
  const camera = cameraDialog(offer);
  const choosers = { files: choose("files", offer), folder: choose("folder", offer), camera };
  for (const button of document.querySelectorAll("[data-choose]")) {
    button.addEventListener("click", choosers[button.dataset.choose]);
  }
  // Text that is pasted into a field comes here too.
  addEventListener("paste", ({ clipboardData: { files } }) => files.length && offer(files));
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dragging");
  });
  addEventListener("drop", async (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    offer(await droppedFiles(event.dataTransfer));
  });
}

function choose(id, offer) {
  const input = document.getElementById(id);
  input.addEventListener("change", () => {
    offer(input.files);
    input.value = "";
  });
  return () => input.click();
}

/** Dropped files, including those in folders. */
async function droppedFiles(transfer) {
  // Entries have to be taken before the first await: afterwards the transfer is empty.
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.());
  const files = [...transfer.files];
  const found = await Promise.all(
    entries.map((entry, at) => (entry?.isDirectory ? filesBelow(entry) : files.slice(at, at + 1))),
  );
  return entries.length ? found.flat() : files;
}

async function filesBelow(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return found;
    found.push(...(await Promise.all(some.map(filesBelow))).flat());
  }
}

function cameraDialog(offer) {
  const dialog = document.getElementById("camera");
  const video = document.getElementById("video");
  let taken = 0;
  document.getElementById("camera-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    video.srcObject?.getTracks().forEach((track) => track.stop());
    video.srcObject = null;
  });
  document.getElementById("shoot").addEventListener("click", () => {
    if (!video.videoWidth) return;
    const canvas = document.createElement("canvas");
    canvas.width = video.videoWidth;
    canvas.height = video.videoHeight;
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob((blob) => {
      taken += 1;
      dialog.close();
      offer([new File([blob], `camera-${taken}.jpg`, { type: "image/jpeg" })]);
    }, "image/jpeg", 0.92);
  });
  return async () => {
    try {
      // Browsers give no camera to unencrypted pages of other machines.
      video.srcObject = await navigator.mediaDevices.getUserMedia({
        video: { facingMode: "environment" },
      });
    } catch {
      document.getElementById("status").textContent =
        "No camera: there is none, access was denied, or this page is not on https or localhost.";
      return;
    }
    dialog.showModal();
  };
}
