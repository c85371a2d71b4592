// Text that others have chosen, made to look as it is: what would change the direction of what is around it, or cannot be seen at
// all, is shown as its number. Only for showing: what is edited and sent stays exact.

// Of what a font leaves out, only the one that makes a picture of the character before it colourful is left where it is.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u2028-\u202e\u2800\ufff9-\ufffb]|(?<!\p{Extended_Pictographic})\ufe0f|(?!\ufe0f)\p{Default_Ignorable_Code_Point}/gu;

const numbered = (char) => {
  const number = char.codePointAt(0).toString(16);
  return number.length > 4 ? `\\u{${number}}` : `\\u${number.padStart(4, "0")}`;
};

export const visible = (text) => text.replace(HIDDEN, numbered);
