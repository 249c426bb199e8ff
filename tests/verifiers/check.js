// Bundles that a key signed, looked at by @sigstore/verify: a list of cases on standard input, a list of answers on
// standard output. The library checks bundle and signature; which image a statement is about its caller must look at.
const crypto = require("node:crypto");
const { bundleFromJSON } = require("@sigstore/bundle");
const { Verifier, toSignedEntity, toTrustMaterial } = require("@sigstore/verify");

const nothing = { certificateAuthorities: [], timestampAuthorities: [], tlogs: [], ctlogs: [] };
const thresholds = { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 };

function check({ bundle, key, digest }) {
  const publicKey = crypto.createPublicKey(key);
  const material = toTrustMaterial(nothing, () => ({ publicKey, validFor: () => true }));
  try {
    new Verifier(material, thresholds).verify(toSignedEntity(bundleFromJSON(bundle)));
    const statement = JSON.parse(Buffer.from(bundle.dsseEnvelope.payload, "base64"));
    const about = statement.subject.map((one) => `sha256:${one.digest.sha256}`);
    return about.includes(digest) ? statement.predicateType : "about another image";
  } catch (error) {
    return error.code || String(error);
  }
}

let text = "";
process.stdin.on("data", (piece) => (text += piece));
process.stdin.on("end", () => console.log(JSON.stringify(JSON.parse(text).map(check))));
