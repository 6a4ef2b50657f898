// Names of the API as text. No DOM here.

/** `inFlight` is "in flight". */
export const words = (name) => name.replace(/[a-z](?=[A-Z])/g, "$& ").toLowerCase();
